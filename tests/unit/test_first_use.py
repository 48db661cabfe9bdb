"""Packages load names on first use, and say where a module is that moved."""

from __future__ import annotations

import pytest

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
