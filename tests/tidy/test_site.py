"""The site of the documents is built: links lead somewhere, the reference has every public name, nothing is fetched."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a broken link, a page without a place and a missing name fail the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_is_built_with_its_reference(site: Path) -> None:
    """Links and names are checked by the build; the reference has the docstrings, not only the names."""
    page = (site / "reference" / "table.html").read_text(encoding="utf-8")
    for name in ("create_tag", "read", "rollback_to_as_latest", "expire"):
        assert f'id="lakebed.Table.{name}"' in page


def test_a_page_fetches_nothing_from_other_hosts(site: Path) -> None:
    """Scripts, styles, fonts and pictures of every page are files of the site."""
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"(https?:)?//|<link[^>]*rel=\"(?:stylesheet|preconnect)\"[^>]*//"
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    assert not [page.name for page in pages if loads.search(page.read_text(encoding="utf-8"))]


def test_the_page_of_figures_has_the_newest_results(root: Path) -> None:
    """docs/performance.md and its plots are what bench/plots.py makes of bench/results."""
    spec = importlib.util.spec_from_file_location("plots", root / "bench" / "plots.py")
    assert spec is not None
    assert spec.loader is not None
    plots = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plots)
    stale = [path.name for path, text in plots.make_files().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, f"Run python bench/plots.py: {stale}"
