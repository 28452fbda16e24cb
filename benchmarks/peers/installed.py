"""The peers' versions, and where they are once Maven and pip have fetched them.

Invariants: each version is written here once. Whoever asks gets files that are there: what was
fetched before is used again, and what is missing on the machine is named with its remedy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PULSAR = "4.2.4"
PULSAR_CLIENT = "3.13.0"
KAFKA = "4.3.1"
SPARK_KAFKA = "4.2.0"
"""The newest that Maven's repository has; Spark's own version may be newer."""
_KAFKA_LOGS = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>peers</groupId> <artifactId>peer</artifactId> <version>1</version>
  <dependencyManagement><dependencies>{managed}</dependencies></dependencyManagement>
  <dependencies>{requested}</dependencies>
</project>
"""
_DEPENDENCY = """
    <dependency>
      <groupId>{}</groupId> <artifactId>{}</artifactId> <version>{}</version>{}
    </dependency>
"""
_IMPORT = " <type>pom</type> <scope>import</scope>"
_CLASSPATH = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"


def pulsar_classpath() -> str:
    """Pulsar's broker with its standalone and its Java client, and what they need."""
    return _classpath(f"org.apache.pulsar:pulsar-broker:{PULSAR}", versions_of="pulsar")


def kafka_classpath() -> str:
    """Kafka's server, and what makes it write a log."""
    return _classpath(f"org.apache.kafka:kafka_2.13:{KAFKA}", _KAFKA_LOGS)


def spark_kafka_jars() -> list[str]:
    """Spark's Kafka source and sink, without what Spark itself has."""
    found = _classpath(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_KAFKA}")
    requested = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
    return [jar for jar in found.split(os.pathsep) if Path(jar).name.startswith(requested)]


def java(tool: str = "java") -> str:
    """A tool of the JDK: that of JAVA_HOME, or the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(tool, path=f"{home}/bin" if home else None)
    return found or _missing(f"{tool} (a JDK of version 17 or newer)", "openjdk-17-jdk")


def java_class(source: Path, classpath: str) -> Path:
    """The folder with the class that this Java file is compiled to, made anew if the file is."""
    folder = cache() / f"classes-{PULSAR}"
    made = folder / source.with_suffix(".class").name
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(
            [java("javac"), "-cp", classpath, "-d", str(folder), str(source)], check=True
        )
    return folder


def client_python() -> Path:
    """A Python that has Pulsar's own client, and nothing of ours."""
    venv = cache() / f"pulsar-client-{PULSAR_CLIENT}"
    python = venv / "bin" / "python"
    if not (venv / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        requested = f"pulsar-client[avro]=={PULSAR_CLIENT}"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", requested], check=True)
        (venv / "complete").touch()
    return python


def cache() -> Path:
    """The folder of the user in which all of this is kept."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = folder / "pulsarlite" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _classpath(artifact: str, *more: str, versions_of: str = "") -> str:
    """The jars of artifacts (`group:name:version`) and of all that they need.

    `versions_of` is an artifact of the first one's group and version, whose versions of what they
    need are taken.
    """
    group, name, version = artifact.split(":")
    kept = cache() / f"{name}-{version}.classpath"
    if kept.exists():
        known = kept.read_text(encoding="utf-8")
        if all(Path(jar).exists() for jar in known.split(os.pathsep)):
            return known
    maven = shutil.which("mvn") or _missing("mvn (Apache Maven)", "maven")
    print(f"Maven fetches {artifact}; the first time takes minutes", file=sys.stderr)
    requested = "".join(_DEPENDENCY.format(*each.split(":"), "") for each in (artifact, *more))
    managed = _DEPENDENCY.format(group, versions_of, version, _IMPORT) if versions_of else ""
    with tempfile.TemporaryDirectory() as folder:
        pom, found = Path(folder, "pom.xml"), Path(folder, "classpath")
        pom.write_text(_POM.format(managed=managed, requested=requested), encoding="utf-8")
        command = [maven, "--quiet", "--batch-mode", "--file", str(pom), _CLASSPATH]
        subprocess.run([*command, f"-Dmdep.outputFile={found}"], check=True)
        resolved = found.read_text(encoding="utf-8").strip()
    kept.write_text(resolved, encoding="utf-8")
    return resolved


def _missing(tool: str, package: str) -> str:
    sys.exit(
        f"The peers need {tool}, which is not on this machine's PATH. "
        f"On Debian and Ubuntu: apt install {package}"
    )
