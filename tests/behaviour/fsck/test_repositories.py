"""fsck of repositories: what is sound is found sound, and every kind of damage is named with its path."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from lakebed.fsck.check import check_url
from lakebed.fsck.model import CheckReport
from lakebed.lake.lake import Lake, open_lake
from lakebed.repo.heads.importing import ImportSource
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.repositories import local_catalog
from lakebed.repo.transport.transport import context_of

QUIET = RepositoryOptions(background=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A lake whose repository has commits, a branch, a tag, something compacted and something staged."""
    with open_lake(str(tmp_path)).repository("analytics", create=True, options=QUIET) as analytics:
        main = analytics.branch()
        main.put("a", b"one")
        main.commit("first")
        analytics.create_tag("v1")
        analytics.create_branch("dev").put("d", b"dev")
        analytics.branch("dev").compact()
        analytics.branch("dev").put("e", b"staged")
        main.put("a", b"three")
        main.commit("second")
    return tmp_path


def check(folder: Path, *, deep: bool = False) -> CheckReport:
    """What fsck says of the lake."""
    return check_url(str(folder), deep=deep)


def first(folder: Path, part: str) -> Path:
    """An object of the repository."""
    return sorted((folder / "analytics.repo" / part).iterdir())[0]


@pytest.mark.parametrize("deep", [False, True], ids=["names", "deep"])
def test_a_sound_repository(folder: Path, deep: bool) -> None:
    """No fault; commits are counted, and objects not yet referred to are only reported."""
    report = check(folder, deep=deep)
    assert report.error_count == 0, report.findings
    assert (report.repository_count, report.version_count) == (1, 3)


def test_staged_and_compacted_objects_are_looked_for(folder: Path) -> None:
    """Each single missing object is found, for every kind of reference to it."""
    for path in sorted((folder / "analytics.repo" / "data").iterdir()):
        body = path.read_bytes()
        path.unlink()
        report = check(folder)
        path.write_bytes(body)
        assert [finding.kind for finding in report.findings if finding.severity == "error"] == ["missing"]
        assert path.name in next(f.path for f in report.findings if f.severity == "error")


@pytest.mark.parametrize("part", ["ranges", "metaranges"])
@pytest.mark.parametrize(
    ("name", "harm", "kinds"),
    [
        ("gone", lambda path: path.unlink(), {"missing"}),
        ("cut", lambda path: path.write_bytes(path.read_bytes()[:-5]), {"wrong_size", "corruption", "missing_range"}),
        (
            "flipped",
            lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
            {"corruption"},
        ),
    ],
    ids=["gone", "cut", "flipped"],
)
def test_damaged_files_are_named(
    folder: Path, part: str, name: str, harm: Callable[[Path], object], kinds: set[str]
) -> None:
    """A range or metarange that is gone, cut or flipped is an error with its path."""
    path = first(folder, part)
    harm(path)
    report = check(folder, deep=True)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert errors, name
    assert {finding.kind for finding in errors} <= kinds
    assert any(path.name in finding.path for finding in errors)


def errors_of(folder: Path, *, deep: bool) -> list[tuple[str, str]]:
    """Kinds and paths of what fsck calls an error."""
    return [
        (finding.kind, finding.path) for finding in check(folder, deep=deep).findings if finding.severity == "error"
    ]


def test_a_deep_check_compares_checksums(folder: Path) -> None:
    """An object whose bytes changed at equal length is named, whether it is committed, compacted or staged."""
    for path in sorted((folder / "analytics.repo" / "data").iterdir()):
        body = path.read_bytes()
        path.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
        assert errors_of(folder, deep=False) == []
        assert errors_of(folder, deep=True) == [("wrong_checksum", f"data/{path.name}")]
        path.write_bytes(body)


def test_a_deep_check_looks_at_imported_objects(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Those that changed or are gone are errors; a check that is not deep says that it does not look at them."""
    source = tmp_path_factory.mktemp("source")
    for name in ("changed", "longer", "gone", "kept"):
        (source / name).write_bytes(b"row1")
    with open_lake(str(folder)).repository("analytics", options=QUIET) as analytics:
        analytics.branch("main").import_objects([ImportSource(str(source), "in")])
    assert errors_of(folder, deep=True) == []
    (source / "changed").write_bytes(b"ROW1")
    (source / "longer").write_bytes(b"row1 and more")
    (source / "gone").unlink()
    assert errors_of(folder, deep=True) == [
        ("import_changed", f"file://{source}/changed"),
        ("import_gone", f"file://{source}/gone"),
        ("import_changed", f"file://{source}/longer"),
    ]
    shallow = check(folder)
    assert shallow.error_count == 0
    (said,) = [finding for finding in shallow.findings if finding.kind == "imports_not_checked"]
    assert said.facts == {"object_count": 4}


def test_orphans_are_told_not_blamed(folder: Path) -> None:
    """An unreferenced object is not a fault."""
    orphan = folder / "analytics.repo" / "data" / "01BX5ZZKBKACTAV9WEVGEMMVRZ"
    orphan.write_bytes(b"nobody's")
    report = check(folder)
    assert report.error_count == 0
    assert [finding.path for finding in report.findings if finding.kind == "orphan"] == [f"data/{orphan.name}"]


def test_a_lost_commit_is_named(folder: Path) -> None:
    """A record that is gone: who needs it is said."""
    lake: Lake = open_lake(str(folder))
    with lake.open_repositories(options=QUIET) as home:
        repository = home.repository("analytics")
        lost = repository.ref("v1").head().id
        local_catalog(home).key_value.delete(context_of(repository).keys.commit(lost))
    report = check(folder)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert [finding.path for finding in errors] == [f"commits/{lost}"]


def test_a_lake_without_repositories_is_fine() -> None:
    """Nothing is made by looking."""
    lake = open_lake(f"memory://{uuid.uuid4()}")
    assert lake.repositories() == []
    assert [meta.path for meta in lake.store.list()] == ["lakebed.json"]
