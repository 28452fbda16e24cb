"""A hook of the site's build (mkdocs.yml), for what mkdocs does not do by itself.

Invariants: a page of the repository is shown as it is, and reads on GitHub as on the site. Pages
beside docs/ and notebooks are added, notebooks with their stored outputs; nothing is run. A link to
a file that is no page of the site becomes its text; mkdocs checks all the others.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY: Final = Path(__file__).resolve().parents[1]
BESIDE: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages of the repository's top -> where they stand on the site."""
API: Final = {
    "pulsar_spark": """pulsar_spark What a program has by `import pulsar_spark`.
        session register ship standalone process Message RetryLater Reject acknowledge
        acknowledge_cumulative negative_acknowledge reconsume_later acknowledgements transaction
        dataset verify PulsarliteError""",
    "Admin": """pulsar_spark.connector.tools.admin An administrator's work: `pulsar_spark.Admin`.
        admin.Admin topics.Topics subscriptions.Subscriptions namespaces.Namespaces
        namespaces.Tenants schemas.Schemas""",
    "Client": """pulsar_spark.pulsar The [client without Spark](../from-pulsar-client.md).
        Client Producer Consumer Reader TableView Transaction Message MessageId""",
    "Testing": """pulsar_spark.testing The [kit for your own tests](../testing.md).
        Place Outcome ManualClock""",
}
"""Title -> a line with the module and what it is for, and the names."""
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
_FENCE: Final = re.compile(r"^ *(```|~~~)")
_ITEM: Final = re.compile(r"^(?:[-*] |\d+\. |\|)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation: notebooks, decisions, the API, pages that it does not name."""
    groups = {name: pages for entry in config.nav or () for name, pages in entry.items()}
    groups["Tutorial"] += [{_title(path): _place(path)} for path in _notebooks()]
    groups["Reference"] += [{"Python": [{name: f"api/{name.lower()}.md"} for name in _api()]}]
    decisions = groups["Explanation"][-1]["Decisions"]
    decisions += [f"decisions/{path.name}" for path in _written("decisions/[0-9]*.md")[1:]]
    named = set(_names(config.nav))
    groups["How-to"] += [path.name for path in _written("*.md") if path.name not in named]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what does not lie in docs/."""
    pages = {place: (REPOSITORY / name).read_text("utf-8") for name, place in BESIDE.items()}
    pages |= {_place(path): "".join(_cells(path)) for path in _notebooks()}
    pages |= {f"api/{name.lower()}.md": text for name, text in _api().items()}
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """GitHub's Markdown for mkdocs: links to the site's pages, lists that need no empty line."""
    home = _source(page.file.src_uri)
    if home.startswith("docs/decisions/"):
        page.meta["search"] = {"boost": 0.2}  # readers come for how, few for why
    lines: list[str] = []
    fenced = False
    for written in markdown.splitlines():
        line = written
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            line = _LINK.sub(lambda link: _site_link(link, home, page.file.src_uri, files), line)
            kind = _ITEM.match(line)
            if kind and lines and lines[-1].strip() and not _continues(lines[-1], kind[0]):
                lines.append("")
        lines.append(line)
    return "\n".join(lines)


# -- inside ----------------------------------------------------------------------------------------


def _site_link(link: re.Match[str], home: str, place: str, files: Files) -> str:
    image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
    if not target or "://" in target or target.startswith("data:"):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
    page = _place_of(path)
    file = files.get_file_from_path(page)
    if (file is None or file.inclusion.is_excluded()) and (REPOSITORY / path).exists():
        return text
    return f"{image}[{text}]({posixpath.relpath(page, posixpath.dirname(place) or '.')}{anchor})"


def _place_of(path: str) -> str:
    """The place on the site of a file of the repository."""
    if path in BESIDE:
        return BESIDE[path]
    if path == "notebooks":
        return _place(_notebooks()[0])
    if path.endswith(".ipynb"):
        return _place(Path(path))
    return path.removeprefix("docs/")


def _source(place: str) -> str:
    """The file of the repository that a page of the site shows."""
    for name, beside in BESIDE.items():
        if place == beside:
            return name
    return place if place.startswith("notebooks/") else f"docs/{place}"


def _continues(before: str, kind: str) -> bool:
    """True if a line that begins so goes on with the list or table that the line before is in."""
    if kind == "|":
        return before.startswith("|")
    return before.startswith("  ") or (bool(_ITEM.match(before)) and not before.startswith("|"))


def _written(pattern: str) -> list[Path]:
    return sorted((REPOSITORY / "docs").glob(pattern))


def _names(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from _names(value)
    else:
        for value in nav:
            yield from _names(value)


# -- notebooks -------------------------------------------------------------------------------------


def _notebooks() -> list[Path]:
    return sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


def _place(path: Path) -> str:
    return f"notebooks/{path.stem}.md"


def _title(path: Path) -> str:
    first = json.loads(path.read_text("utf-8"))["cells"][0]
    return "".join(first["source"]).splitlines()[0].lstrip("# ")


def _cells(path: Path) -> Iterator[str]:
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield f"{source}\n\n"
            continue
        yield f"```python\n{source}\n```\n\n"
        for output in cell["outputs"]:
            yield f'<div class="output">\n{_shown(output)}\n</div>\n\n'


def _shown(output: dict[str, Any]) -> str:
    """One stored output, as HTML."""
    data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
    if "image/png" in data:
        text = escape(data.get("text/plain", ""))
        png = data["image/png"].replace("\n", "")
        return f'<img alt="{text}" src="data:image/png;base64,{png}">'
    if "text/html" in data:
        return re.sub(r"\n\s*\n", "\n", data["text/html"])
    text = data.get("text/plain", "".join(output.get("text", "")))
    return f"<pre>{escape(text.rstrip())}</pre>"


# -- the API ---------------------------------------------------------------------------------------


def _api() -> dict[str, str]:
    """Title -> page, which mkdocstrings fills from the docstrings."""
    pages = {}
    for title, text in API.items():
        first, names = text.split("\n", 1)
        module, intro = first.split(" ", 1)
        described = "".join(f"::: {module}.{name}\n\n" for name in names.split())
        pages[title] = f"# {title}\n{intro}\n\n{described}"
    return pages
