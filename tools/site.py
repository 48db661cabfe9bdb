"""The hook of mkdocs.yml: pages of the root, sections of the navigation, links that leave docs/, missing names.

- README.md, ARCHITECTURE.md, CONTRIBUTING.md, CHANGELOG.md, SECURITY.md and bench/RESULTS.md become pages of the site.
- A link to one of them, and back, is rewritten; a link to another file of the checkout becomes its path as text.
- The sections Format and Internals have every page of docs/format and docs/design, in the order of docs/design.
- A name of docs/reference/public.txt that no page of the reference shows is an error, as a link that leads nowhere is.
- The search puts guides before other pages, and what is for contributors and for other implementations behind them.
- Mermaid diagrams are shown as their text: a drawing would need a script of 3 MB, or a request to another host.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parents[1]
ROOT_PAGES: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "bench/RESULTS.md": "results.md",
}
"""Files of the checkout that become pages, and the pages' names."""

_BOOSTS: Final = {"guide": 3.0, "format": 0.3, "design": 0.3}
"""How much a page of a folder counts in the search; others count 1."""

_LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_IMAGE: Final = re.compile(r"(!\[[^\]]*\]\(|<img src=\")docs/")
_SHOWN: Final = re.compile(r"^::: (\S+)$", re.MULTILINE)
_NUMBER: Final = re.compile(r"^# \d{4}: (.)", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Fill in the sections of the navigation that are folders."""
    for section in config.nav:
        if "Format" in section:
            section["Format"] = ["format/README.md", *_pages("format")]
        if "Internals" in section:
            section["Internals"] = ["architecture.md", "contributing.md", "security.md", "results.md", *_design_nav()]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root."""
    for source, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite links, pictures and diagrams of one page."""
    page_path = page.file.src_uri
    page.meta["search"] = {"boost": _BOOSTS.get(page_path.partition("/")[0], 1.0)}
    source = next((name for name, made in ROOT_PAGES.items() if made == page_path), f"docs/{page_path}")
    if source in ROOT_PAGES:
        markdown = _IMAGE.sub(r"\1", markdown)
    markdown = _NUMBER.sub(lambda match: "# " + match[1].upper(), markdown, count=1)
    markdown = markdown.replace("```mermaid\n", "```text\n")
    return _outside_code(markdown, lambda text: _LINK.sub(lambda link: _rewrite(link, source, page_path), text))


def on_env(env: Any, config: Any, files: Files) -> Any:
    """Compare the reference with the public names. Raises `PluginError`."""
    shown = {
        name
        for path in (ROOT / "docs" / "reference").glob("*.md")
        for name in _SHOWN.findall(path.read_text(encoding="utf-8"))
    }
    missing = [name for name in _public_names() if not {name, name.rpartition(".")[0]} & shown]
    if missing:
        raise PluginError(f"These public names are on no page of docs/reference: {', '.join(missing)}.")
    return env


def _outside_code(markdown: str, change: Any) -> str:
    parts = re.split(r"(^```.*?^```$|`[^`\n]+`(?!\]))", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("`") else change(part) for part in parts)


def _rewrite(link: re.Match[str], source: str, page: str) -> str:
    text, target, anchor = link[1], link[2], link[3] or ""
    if not target or "://" in target or target.startswith("mailto:"):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path in ROOT_PAGES:
        made = ROOT_PAGES[path]
    elif path.startswith("docs/"):
        made = path.removeprefix("docs/")
    elif not (ROOT / path).exists():
        raise PluginError(f"{source}: the link to {target} leads nowhere.")
    else:
        return f"{text} (`{path}`)" if path not in text else text
    if (ROOT / "docs" / made).is_dir():
        made += "/README.md"
    return f"[{text}]({os.path.relpath(made, posixpath.dirname(page) or '.')}{anchor})"


def _pages(folder: str) -> list[str]:
    return [f"{folder}/{path.name}" for path in sorted((ROOT / "docs" / folder).glob("*.md")) if path.stem != "README"]


def _design_nav() -> list[Any]:
    """The pages of docs/design under the headings of its README."""
    nav: list[Any] = ["design/README.md"]
    for section in (ROOT / "docs" / "design" / "README.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        nav.append({heading: [f"design/{name}" for name in re.findall(r"^\| \[\d+\]\((\S+)\)", body, re.MULTILINE)]})
    return nav


def _public_names() -> list[str]:
    """The public names of modules, without the members of classes."""
    lines = (ROOT / "docs" / "reference" / "public.txt").read_text(encoding="utf-8").splitlines()
    classes = {line.removeprefix("class ").partition("(")[0] for line in lines if line.startswith("class ")}
    names = {line.removeprefix("class ").partition("(")[0] for line in lines}
    return sorted(name for name in names if name.rpartition(".")[0] not in classes and not name.endswith("__"))
