"""Repositories as files of fsspec: pandas, polars, DuckDB and pyarrow without a server, and fsspec's own verbs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import lakebed.repo
from lakebed.repo.fs import RepositoryFileSystem

FRAME = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "é", None]})


def refused(kind: type[Exception] | tuple[type[Exception], ...], function: Callable[[], Any]) -> str:
    """What an error of this kind says."""
    with pytest.raises(kind) as caught:
        function()
    return str(caught.value)


def test_libraries_by_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pandas, polars, DuckDB and pyarrow read and write objects of a branch by lakebed:// without a server."""
    fsspec.register_implementation("lakebed", RepositoryFileSystem, clobber=True)
    lake = str(tmp_path / "files")
    with lakebed.repo.open(f"{lake}/analytics.repo"):
        pass
    options = {"lake": lake}
    FRAME.to_parquet("lakebed://analytics/main/t/x.parquet", storage_options=options)
    FRAME.to_csv("lakebed://analytics/main/t/x.csv", index=False, storage_options=options)
    assert pd.read_parquet("lakebed://analytics/main/t/x.parquet", storage_options=options).equals(FRAME)
    assert pd.read_csv("lakebed://analytics/main/t/x.csv", storage_options=options).equals(FRAME)
    fs = fsspec.filesystem("lakebed", **options)
    duckdb.register_filesystem(fs)
    assert duckdb.sql("SELECT sum(a) FROM 'lakebed://analytics/main/t/*.parquet'").fetchall() == [(6,)]
    duckdb.sql("COPY (SELECT 5 AS a) TO 'lakebed://analytics/main/t/duck.parquet' (FORMAT parquet)")
    assert pq.read_table("analytics/main/t/duck.parquet", filesystem=fs).to_pylist() == [{"a": 5}]
    assert ds.dataset("analytics/main/t/x.parquet", filesystem=fs).to_table(filter=ds.field("a") > 1).num_rows == 2
    with fs.open("analytics/main/t/x.parquet") as file:
        assert pl.read_parquet(file)["a"].to_list() == [1, 2, 3]
    monkeypatch.setenv("LAKEBED_LAKE", lake)
    fs.close()
    assert pd.read_parquet("lakebed://analytics/main/t/x.parquet").equals(FRAME)
    fsspec.filesystem("lakebed").close()
    monkeypatch.delenv("LAKEBED_LAKE")
    assert "storage_options" in refused(ValueError, lambda: RepositoryFileSystem(skip_instance_cache=True).ls(""))


def test_files_of_a_repository(tmp_path: Path) -> None:
    """Listing, information, patterns, copies, moves and deletions are those of a dictionary of paths."""
    with lakebed.repo.open(str(tmp_path / "plain" / "some.repo")) as some:
        fs, main = some.filesystem(), some.branch("main")
        for path in ("a/1", "a/b/2", "a/b/3", "ab", "ü % +"):
            fs.pipe(f"some/main/{path}", path.encode())
        assert sorted(entry.path for entry in main.list()) == ["a/1", "a/b/2", "a/b/3", "ab", "ü % +"]
        assert [change.path for change in main.status()] == [entry.path for entry in main.list()]
        assert fs.ls("", detail=False) == ["some"]
        assert fs.ls("lakebed://some/main/a", detail=False) == ["some/main/a/1", "some/main/a/b"]
        assert [store["type"] for store in fs.ls("some/main")] == ["directory", "file", "file"]
        assert fs.ls("some/main/ab", detail=False) == ["some/main/ab"]
        assert fs.glob("some/main/**/[23]") == ["some/main/a/b/2", "some/main/a/b/3"]
        assert fs.find("some/main/a") == ["some/main/a/1", "some/main/a/b/2", "some/main/a/b/3"]
        assert fs.find("some/main/a/1") == ["some/main/a/1"]
        assert fs.find("some/main/a", maxdepth=1) == ["some/main/a/1"]
        assert [top for top, _, _ in fs.walk("some/main/a")] == ["some/main/a", "some/main/a/b"]
        assert fs.info("some/main/ab")["size"] == 2
        assert (fs.isdir("some/main/a"), fs.isfile("some/main/a"), fs.exists("some/main/a/")) == (True, False, True)
        assert fs.cat("some/main/ü % +") == "ü % +".encode()
        assert (fs.cat_file("some/main/ü % +", 2, 4), fs.cat_file("some/main/ab", -1)) == (b" %", b"b")
        assert not fs.exists("some/main/nope")
        first = main.commit("all of it")
        some.create_tag("v/1", ref=first.id)
        fs.mv("some/main/a/b", "some/main/moved", recursive=True)
        fs.cp("some/main/ab", "some/main/copied")
        fs.rm("some/main/a", recursive=True)
        fs.rm("some/main/ü % +")
        assert sorted(entry.path for entry in main.list()) == ["ab", "copied", "moved/2", "moved/3"]
        assert main.get("moved/3") == b"a/b/3"
        assert fs.cat("some/v%2F1/a/b/3") == fs.cat(f"some/{first.id}/a/b/3") == b"a/b/3"
        assert set(fs.ls("some", detail=False)) == {"some/main", "some/v%2F1"}
        with fs.open("some/main/text", "w") as text:
            text.write("é\n")
        with fs.open("some/main/text", "ab") as more:
            more.write(b"more")
        assert fs.open("some/main/text", "r").read() == "é\nmore"
        big = os.urandom(20_000_000)
        fs.pipe("some/main/big", big)
        with fs.open("some/main/big") as file:
            file.seek(-10, 2)
            assert file.read() == big[-10:]


def test_what_goes_wrong(tmp_path: Path) -> None:
    """Errors are Python's own, nothing half is left, and what is not a branch is not written."""
    with lakebed.repo.open(str(tmp_path / "wrong" / "some.repo")) as some:
        fs, main = some.filesystem(), some.branch("main")
        for path in ("some/main/nope", "some/nope/x", "other/main/x"):
            assert "nope" in refused(FileNotFoundError, lambda path=path: fs.cat(path)) or path.startswith("other")
        refused(FileNotFoundError, lambda: fs.rm("some/main/nope"))
        refused(FileNotFoundError, lambda: fs.ls("some/main/nope"))
        refused(IsADirectoryError, lambda: fs.cat("some/main"))
        fs.pipe("some/main/a", b"1")
        refused(FileExistsError, lambda: fs.open("some/main/a", "xb"))
        refused(ValueError, lambda: fs.open("some/main/a", "r+b"))
        commit = main.commit("one").id
        for ref in (commit, "main~1"):
            refused((OSError, ValueError), lambda ref=ref: fs.pipe(f"some/{ref}/a", b"2"))
        with pytest.raises(KeyError), fs.open("some/main/half", "wb") as file:  # noqa: PT012
            file.write(b"half")
            raise KeyError
        assert not fs.exists("some/main/half")
        dropped = fs.open("some/main/dropped", "wb")
        dropped.write(b"part")
        del dropped
        assert not fs.exists("some/main/dropped")
        with fs.transaction:
            with fs.open("some/main/late", "wb") as file:
                file.write(b"1")
            assert not fs.exists("some/main/late")
        assert fs.cat("some/main/late") == b"1"
        some.protect("main")
        refused(OSError, lambda: fs.pipe("some/main/b", b"1"))
        assert main.get("a") == b"1"


ODD = ["t", "t/x", "t//y", "t/q/", "t/q/z", "t/ /w", "/t"]
"""Paths of which some are no names of local files."""


def test_whole_directories_are_copied_moved_and_deleted_with_every_path() -> None:
    """Empty names and marks of directories are objects as others are: none is left out of a copy, and so lost."""
    with lakebed.repo.open("memory://odd-paths/analytics.repo") as analytics:
        fs, main, dev = analytics.filesystem(), analytics.branch("main"), analytics.create_branch("dev")
        bodies = {f"{folder}{path}": path.encode() for folder in ("a/", "") for path in ODD}
        for path, body in bodies.items():
            main.put(path, body)
        fs.copy("analytics/main/a", "analytics/dev/b", recursive=True)
        assert {line.path: dev.get(line.path) for line in dev.list()} == {f"b/{path}": path.encode() for path in ODD}
        fs.mv("analytics/main/a", "analytics/main/c", recursive=True)
        expected = {path.replace("a/", "c/", 1): body for path, body in bodies.items()}
        assert {line.path: main.get(line.path) for line in main.list()} == expected
        files = set(fs.find("analytics/main"))
        directories = {info["name"] for info in fs.find("analytics/main", withdirs=True, detail=True).values()} - files
        assert files == {f"analytics/main/{path}" for path in expected}
        assert {"analytics/main", "analytics/main/c", "analytics/main/c/t/q", "analytics/main/t/ "} <= directories
        assert all(map(fs.isdir, directories))
        assert "no local file has" in refused(ValueError, lambda: fs.get("analytics/main/c/t//y", "./y"))
        fs.rm("analytics/main", recursive=True)
        assert list(main.list()) == []
        assert "whole repository" in refused(IsADirectoryError, lambda: fs.rm("analytics", recursive=True))


def test_a_move_deletes_nothing_that_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another one puts below a directory while it is moved stays where it was put."""
    with lakebed.repo.open("memory://moved-files/analytics.repo") as analytics:
        fs, main = analytics.filesystem(), analytics.branch("main")
        main.put("a/1", b"1")
        copy_file = fs.cp_file

        def put_then_copy(path1: str, path2: str, **kwargs: Any) -> None:
            main.put("a/2", b"2")
            copy_file(path1, path2, **kwargs)

        monkeypatch.setattr(fs, "cp_file", put_then_copy)
        fs.mv("analytics/main/a", "analytics/main/b", recursive=True)
        assert [line.path for line in main.list()] == ["a/2", "b/1"]


def test_a_move_does_not_delete_what_a_merge_brings_to_the_old_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that came after the copy has been moved nowhere, so the move fails and deletes nothing."""
    with lakebed.repo.open("memory://merged-while-moved/analytics.repo") as analytics:
        fs, main = analytics.filesystem(), analytics.branch("main")
        main.put("a", b"old")
        main.commit("old")
        dev = analytics.create_branch("dev")
        dev.put("a", b"new")
        dev.commit("new")
        copy_file = fs.cp_file

        def copy_then_merge(path1: str, path2: str, **kwargs: Any) -> None:
            copy_file(path1, path2, **kwargs)
            main.commit("the copy")
            main.merge("dev")

        monkeypatch.setattr(fs, "cp_file", copy_then_merge)
        assert "'a'" in refused(OSError, lambda: fs.mv("analytics/main/a", "analytics/main/b"))
        assert {line.path: main.get(line.path) for line in main.list()} == {"a": b"new", "b": b"old"}
        monkeypatch.undo()
        fs.mv("analytics/main/a", "analytics/main/c")
        assert {line.path: main.get(line.path) for line in main.list()} == {"b": b"old", "c": b"new"}
