"""Packages load names on first use, and say where a module is that moved."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lakebed.kv
import lakebed.lake
import lakebed.repo
import lakebed.spark
import lakebed.table


def test_a_module_that_moved_is_named() -> None:
    """An import of a module by its place before the rooms says where it is now, of every room that has one."""
    with pytest.raises(ImportError, match=r"lakebed\.table\.snapshots has moved: import lakebed\.table\.branch\.snap"):
        from lakebed.table import snapshots  # noqa: F401
    with pytest.raises(ImportError, match=r"import lakebed\.repo\.heads\.commit or lakebed\.repo\.verbs\.commit\."):
        from lakebed.repo import commit  # noqa: F401
    with pytest.raises(ImportError, match=r"import lakebed\.spark\.plan\.filters\."):
        from lakebed.spark import filters  # noqa: F401


@pytest.mark.parametrize("package", [lakebed, lakebed.table, lakebed.repo, lakebed.spark, lakebed.kv, lakebed.lake])
def test_an_unknown_name_is_an_attribute_error(package: object) -> None:
    """As of any module, so that tools may look for names that are not there."""
    for name in ("no_such_name", "__wrapped__", "_private"):
        assert not hasattr(package, name)


def test_a_package_that_nothing_has_imported_is_imported_or_named() -> None:
    """Also where a module below it has the same name: `lakebed.lake` has not moved to `lakebed.lake.lake`."""
    program = """
from lakebed import lake
import sys
del lake, sys.modules["lakebed.lake"], sys.modules["lakebed"].lake
import lakebed
try:
    lakebed.lake
except AttributeError as problem:
    print(problem)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("lakebed.lake is not imported yet: import lakebed.lake.\n", "")


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("lakebed.testing", "greenlet", "testing"),
        ("lakebed.repo.fs", "fsspec", "fsspec"),
        ("lakebed.table.exports.delta", "deltalake", "delta"),
        ("lakebed.table.exports.iceberg", "pyiceberg", "iceberg"),
        ("lakebed.table.exports.iceberg", "sqlalchemy", "iceberg"),
    ],
)
def test_a_package_that_is_missing_is_named_with_what_installs_it(module: str, missing: str, extra: str) -> None:
    """The one that is missing, not another of the same extra."""
    program = f"import sys; sys.modules[{missing!r}] = None; import {module}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = ended.stderr.strip().splitlines()[-1]
    assert missing in last
    assert f"pip install 'lakebed[{extra}]'" in last
