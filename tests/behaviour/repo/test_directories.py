"""Directories copied to and from a repository, judged by the file system and a dictionary."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lakebed.repo
from lakebed.cli.main import run
from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.repo.directories import CopyProgress, download_directory
from lakebed.repo.repository import Repository
from worlds.errors import raises

FILES = {
    "a.txt": b"one",
    "empty": b"",
    "deep/er/b c%+é.bin": bytes(range(256)) * 50,
    "deep/zz": b"x" * 3_000_000,
    ".hidden": b"dot",
}


@pytest.fixture
def repository(request: pytest.FixtureRequest) -> Iterator[Repository]:
    """An empty repository."""
    name = re.sub(r"\W", "-", request.node.name)
    with lakebed.repo.open(f"memory://directories-{name}/some.repo") as opened:
        yield opened


def fill(root: Path, files: dict[str, bytes]) -> Path:
    """Write files below a folder."""
    for path, body in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(body)
    return root


def on_disk(root: Path) -> dict[str, bytes]:
    """Files below a folder by relative path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def in_branch(reference: Any, prefix: str = "") -> dict[str, bytes]:
    """Objects below a prefix by relative path."""
    return {one.path.removeprefix(prefix): reference.get(one.path) for one in reference.list(prefix)}


@pytest.mark.parametrize("prefix", ["", "raw", "raw/"])
def test_a_directory_goes_up_and_comes_back(repository: Repository, tmp_path: Path, prefix: str) -> None:
    """Every file with its bytes, below the prefix and nowhere else; what is equal is not copied again."""
    main = repository.branch("main")
    main.put("rawer", b"a neighbour")
    source = fill(tmp_path / "source", FILES)
    seen: list[CopyProgress] = []
    report = main.upload_directory(source, prefix, progress=seen.append)
    below = "raw/" if prefix else ""
    assert in_branch(main, below) == (FILES if below else {**FILES, "rawer": b"a neighbour"})
    assert (report.copied, report.unchanged_count, report.deleted) == (tuple(sorted(FILES)), 0, ())
    assert report.copied_bytes == sum(map(len, FILES.values()))
    assert seen[-1] == CopyProgress(report.copied_bytes, report.copied_bytes)
    assert main.upload_directory(source, prefix).unchanged_count == len(FILES)
    main.delete("rawer")
    target = tmp_path / "new" / "target"
    down = main.download_directory(target, prefix)
    assert on_disk(target) == FILES
    assert (down.copied, down.unchanged_count) == (report.copied, 0)
    (target / "a.txt").write_bytes(b"two")
    assert main.download_directory(target, prefix).copied == ("a.txt",)
    assert on_disk(target) == FILES


def test_an_upload_appears_at_once_or_not_at_all(repository: Repository, tmp_path: Path) -> None:
    """A file that cannot be read leaves the branch as it was, and no change is staged before all bytes are there."""
    main = repository.branch("main")
    source = fill(tmp_path, {f"{number:03}": b"x" for number in range(40)})

    def stop(progress: CopyProgress) -> None:
        assert list(main.list()) == []
        if progress.done_count == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        main.upload_directory(source, progress=stop)
    assert list(main.list()) == []
    os.symlink(tmp_path / "gone", tmp_path / "dangling")
    assert main.upload_directory(source).skipped == ("dangling",)
    assert len(list(main.list())) == 40


@pytest.mark.parametrize("dry_run", [True, False])
def test_deleting_what_the_other_side_does_not_have(repository: Repository, tmp_path: Path, dry_run: bool) -> None:
    """Only when asked, only below the prefix and the directory, and a dry run says the same and changes nothing."""
    main = repository.branch("main")
    source = fill(tmp_path / "source", {"keep": b"1", "new": b"2"})
    for path in ("x/keep", "x/old", "xy", "y/old"):
        main.put(path, b"1")
    assert main.upload_directory(source, "x", dry_run=True).deleted == ()
    report = main.upload_directory(source, "x", delete=True, dry_run=dry_run)
    assert (report.copied, report.deleted, report.unchanged_count) == (("new",), ("old",), 1)
    expected = {"x/keep", "x/old", "xy", "y/old"} if dry_run else {"x/keep", "x/new", "xy", "y/old"}
    assert set(in_branch(main)) == expected

    target = fill(tmp_path / "target", {"keep": b"1", "stray": b"3", "in/stray": b"4"})
    down = main.download_directory(target, "x", delete=True, dry_run=dry_run)
    assert down.deleted == ("in/stray", "stray")
    assert set(on_disk(target)) == ({"keep", "stray", "in/stray"} if dry_run else {"keep", "new"})


def test_what_others_write_during_a_copy_is_not_deleted(repository: Repository, tmp_path: Path) -> None:
    """The object that was listed may go; one that came to its path since may not."""
    main = repository.branch("main")
    main.put("old", b"1")
    source = fill(tmp_path / "source", {"new": b"2"})
    with raises(Conflict, "path_changed", match="'old'"):
        main.upload_directory(source, delete=True, progress=lambda _: main.put("old", b"of another"))
    assert {path: main.get(path) for path in in_branch(main)} == {"new": b"2", "old": b"of another"}
    assert main.upload_directory(source, delete=True).deleted == ("old",)


@pytest.mark.parametrize("delete", [True, False])
@pytest.mark.parametrize("prefix", ["typo", "typo/", "there/object"])
def test_a_prefix_without_objects_empties_no_directory(
    repository: Repository, tmp_path: Path, prefix: str, delete: bool
) -> None:
    """It is an error that names the prefix, before anything is written or deleted, also in a dry run."""
    main = repository.branch("main")
    main.put("there/object", b"1")
    target = fill(tmp_path / "target", {"keep": b"1", "in/keep": b"2"})
    for dry_run in (True, False):
        with raises(NotFound, "prefix_not_found", match=f"no path begins with {prefix.rstrip('/')}/:"):
            main.download_directory(target, prefix, delete=delete, dry_run=dry_run)
    assert on_disk(target) == {"keep": b"1", "in/keep": b"2"}
    main.delete("there/object")
    assert main.download_directory(target, delete=delete).deleted == (("in/keep", "keep") if delete else ())


@pytest.mark.parametrize("path", ["/etc/out", "a//b", "a/", ".", "in/out"])
def test_nothing_is_written_outside_of_the_directory(repository: Repository, tmp_path: Path, path: str) -> None:
    """Paths that no file below the directory can have, and links that lead out of it, are refused before any write."""
    main = repository.branch("main")
    main.put("fine", b"1")
    main.put(path, b"evil")
    (tmp_path / "outside").mkdir()
    target = tmp_path / "target"
    target.mkdir()
    os.symlink(tmp_path / "outside", target / "in")
    with raises(InvalidRequest, "not_a_file_name"):
        main.download_directory(target)
    assert os.listdir(target) == ["in"]
    assert os.listdir(tmp_path / "outside") == []
    assert sorted(os.listdir(tmp_path)) == ["outside", "target"]


def test_links_to_files_are_replaced_not_followed(repository: Repository, tmp_path: Path) -> None:
    """Where an object and a link have one name, the link becomes a file, and what it leads to stays as it is."""
    main = repository.branch("main")
    for name in ("differs", "dangling", "same"):
        main.put(name, b"new")
    fill(tmp_path, {"outside": b"old", "equal": b"new"})
    target = tmp_path / "target"
    target.mkdir()
    for name, leads_to in (("differs", "outside"), ("dangling", "nowhere"), ("same", "equal"), ("other", "gone")):
        os.symlink(tmp_path / leads_to, target / name)
    report = main.download_directory(target)
    assert (report.copied, report.unchanged_count, report.skipped) == (("dangling", "differs"), 1, ("other",))
    assert on_disk(target) == {"differs": b"new", "dangling": b"new", "same": b"new"}
    assert (tmp_path / "outside").read_bytes() == b"old"
    assert [path.name for path in target.iterdir() if path.is_symlink()] in (["same", "other"], ["other", "same"])
    assert not (tmp_path / "nowhere").exists()


def test_what_cannot_be_files_is_named(repository: Repository, tmp_path: Path) -> None:
    """A path below another object, a directory in place of a file, and a directory that is not there."""
    main = repository.branch("main")
    main.put("a", b"1")
    main.put("a/b", b"2")
    with pytest.raises(InvalidRequest, match="lies below another object"):
        main.download_directory(tmp_path / "target")
    main.delete("a/b")
    (tmp_path / "other" / "a").mkdir(parents=True)
    with pytest.raises(InvalidRequest, match="is a directory"):
        main.download_directory(tmp_path / "other")
    with pytest.raises(NotFound, match="no directory"):
        main.upload_directory(tmp_path / "nope")


def test_an_object_that_is_replaced_meanwhile_is_no_half_file(repository: Repository, tmp_path: Path) -> None:
    """The download says so, and what it wrote before is whole."""
    main = repository.branch("main")
    main.put("first", b"old")
    main.put("second", b"old")

    class Moving:
        """A branch on which an object is replaced after it was listed."""

        stream = staticmethod(main.stream)

        @staticmethod
        def list(prefix: str) -> list[Any]:
            listed = list(main.list(prefix))
            main.put("second", b"longer than before")
            return listed

    with pytest.raises(Conflict, match="was replaced"):
        download_directory(Moving, tmp_path / "target")
    assert set(on_disk(tmp_path / "target").items()) <= {("first", b"old")}


def test_files_with_names_alike_keep_their_own_bytes(repository: Repository, tmp_path: Path) -> None:
    """Names that are long, begin alike, or fill what a file system allows, are written at once and not mixed up."""
    names = [f"{'n' * 200}{number:02d}" for number in range(16)] + ["\U0001f600" * 63]
    files = {name: name.encode()[-2:] * 500_000 for name in names}
    main = repository.branch("main")
    for name, body in files.items():
        main.put(name, body)
    meeting = threading.Barrier(2)

    def stream(path: str) -> Iterator[bytes]:
        """The bytes of an object; the first two are in the middle of it at the same time."""
        for number, chunk in enumerate(main.stream(path)):
            yield chunk
            if number == 0 and path in names[:2]:
                meeting.wait(timeout=60)

    download_directory(SimpleNamespace(list=main.list, stream=stream), tmp_path / "target")
    assert on_disk(tmp_path / "target") == files


def test_the_commands_copy_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Upload and download by the command line, with what a dry run would do."""
    lake, source, target = str(tmp_path / "lake"), fill(tmp_path / "s", FILES), tmp_path / "t"
    with lakebed.repo.open(f"{lake}/some.repo"):
        pass
    assert run(["repo", "upload", lake, "some", "main", str(source), "raw", "--dry-run"]) == 0
    assert f"Would copy {len(FILES)} files" in capsys.readouterr().out
    assert run(["repo", "upload", lake, "some", "main", str(source), "raw"]) == 0
    assert f"Copied {len(FILES)} files" in capsys.readouterr().out
    assert run(["repo", "download", lake, "some", "main", str(target), "raw", "--json"]) == 0
    assert '"unchanged": 0' in capsys.readouterr().out
    assert run(["repo", "download", lake, "some", "main", str(target), "typo", "--delete", "--yes"]) == 3
    assert "no path begins with typo/" in capsys.readouterr().err
    assert on_disk(target) == FILES
