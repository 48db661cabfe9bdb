"""The site of the documents: links lead somewhere, the reference has every public name, nothing is fetched."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

from worlds.modules import load_module


def build(root: Path, folder: Path, **settings: str) -> Path:
    """Build the site; a broken link, a page without a place and a missing name fail the build, but not with --quiet."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def pages_that_fetch(site: Path) -> list[str]:
    """The pages with scripts, styles, fonts or pictures that are no files of the site."""
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"(https?:)?//|<link[^>]*rel=\"(?:stylesheet|preconnect)\"[^>]*//"
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    return [page.name for page in pages if loads.search(page.read_text(encoding="utf-8"))]


def test_links_of_the_pages_lead_somewhere(root: Path, tmp_path: Path) -> None:
    """All pages without docstrings: the build checks links and anchors, and that no public name is without a page."""
    assert not pages_that_fetch(build(root, tmp_path, SITE_REFERENCE="false"))


def test_the_reference_shows_names_that_exist(root: Path) -> None:
    """A page of the reference shows a name that Python finds in the package, by the way that the page writes it."""
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (root / "docs" / "reference").glob("*.md"))
    names = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    assert len(names) > 100
    missing = []
    for name in names:
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            missing.append(f"{name}: {error}")
    assert not missing, "\n".join(missing)


@pytest.mark.long
def test_the_site_is_built_with_its_reference(root: Path, tmp_path: Path) -> None:
    """The reference has the docstrings, not only the names."""
    site = build(root, tmp_path)
    page = (site / "reference" / "table.html").read_text(encoding="utf-8")
    for name in ("create_tag", "read", "rollback_to_as_latest", "expire"):
        assert f'id="lakebed.Table.{name}"' in page
    assert not pages_that_fetch(site)
    pages = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    boosts = {page["location"]: page["boost"] for page in pages}
    assert boosts["guide/tables.html"] > boosts["reference/table.html"] > boosts["design/0006-expiry.html"]


def test_the_page_of_figures_names_every_other_software(root: Path) -> None:
    """What is installed or built to be compared with is other software: bold where it is better, a dot in the plots."""
    plots = load_module(root / "bench" / "plots.py")
    others = ("pypaimon", "pyiceberg", "deltalake", "rocksdict", "slatedb", "db_bench", "lakefs")
    assert not [name for name in others if plots.format_ratio(name, 0.5) != "**0.5x**"]
    assert plots.format_ratio("none-sealed", 0.5) == "0.5x"


def test_the_page_of_figures_has_the_newest_results(root: Path) -> None:
    """docs/performance.md and its plots are what bench/plots.py makes of bench/results."""
    plots = load_module(root / "bench" / "plots.py")
    stale = [path.name for path, text in plots.make_files().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, f"Run python bench/plots.py: {stale}"
