"""Commands on repositories: the same on a folder, on a folder that a server owns, and through a server's URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lakebed.repo
from lakebed.cli import exits
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

Cli = Callable[..., Any]


@pytest.fixture(params=["folder", "http"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What to write for LAKE: a folder without an owner, one that a server owns, or the server's URL."""
    folder = tmp_path / "lake"
    if request.param == "folder":
        with lakebed.repo.open_all(folder, durable=False) as made:
            made.create("analytics")
        yield str(folder)
        return
    with start_server(folder, options=ServerOptions(durable=False, import_from=[str(tmp_path)])) as running:
        messages = running.started
        monkeypatch.setenv("LAKEBED_ACCESS_KEY_ID", str(messages.access_key))
        monkeypatch.setenv("LAKEBED_SECRET_ACCESS_KEY", str(messages.secret))
        running.site.repositories.create("analytics")
        yield str(folder) if request.param == "beside" else messages.endpoint


@pytest.fixture
def repo(cli: Cli, home: str) -> Cli:
    """Run a command on the repository ``analytics``: ``repo("ls", "main")``; it must end with 0."""

    def call(command: str, *arguments: object, code: int = 0) -> Any:
        answer = cli("repo", *command.split(), home, "analytics", *arguments)
        assert answer.code == code, (answer.out, answer.err)
        return answer

    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file to put."""
    path = tmp_path / "file.csv"
    path.write_bytes(b"id\n1\n")
    return path


def one_sentence(text: str) -> str:
    """An error's text, if it is one sentence that says what is wrong."""
    assert text.startswith("lakebed: "), text
    assert "Traceback" not in text
    assert len(text.strip().splitlines()) == 1, text
    return text


@pytest.mark.parametrize("words", [("an",), ("analytics", "--default-branch", "a b")])
def test_a_wrong_name_makes_no_lake(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    """A name that cannot be is refused before anything is written."""
    assert cli("repo", "create", tmp_path / "new", *words).code == exits.USAGE
    assert not (tmp_path / "new").exists()


def test_objects_are_put_listed_and_read(repo: Cli, file: Path, tmp_path: Path) -> None:
    """What is put is listed by levels, described, read whole into a file, and read again by the next command."""
    written = repo("put", "main", "raw/a.csv", file, "--content-type", "text/csv", "--meta", "owner=ada", "--json").json
    assert written["bytes"] == 5
    assert "Wrote raw/b.csv (5 B)" in repo("put", "main", "raw/b.csv", file).out
    assert "exists already" in one_sentence(repo("put", "main", "raw/b.csv", file, "--if-absent", code=4).err)
    assert [row["path"] for row in repo("ls", "main", "--json").json] == ["raw/"]
    assert [row["path"] for row in repo("ls", "main", "raw/", "--json").json] == ["raw/a.csv", "raw/b.csv"]
    assert len(repo("ls", "main", "-r", "--limit", "1", "--json").json) == 1
    assert "raw/" in repo("ls", "main").out
    document = repo("stat", "main", "raw/a.csv", "--json").json
    assert (document["content_type"], document["metadata"], document["checksum"]) == (
        "text/csv",
        {"owner": "ada"},
        written["checksum"],
    )
    assert "text/csv" in repo("stat", "main", "raw/a.csv").out
    out = tmp_path / "out"
    assert repo("get", "main", "raw/a.csv", out, "--json").json["bytes"] == 5
    assert out.read_bytes() == b"id\n1\n"
    assert "already" in one_sentence(repo("get", "main", "raw/a.csv", out, code=4).err)
    repo("get", "main", "raw/a.csv", out, "--force")


def test_objects_are_deleted(repo: Cli, file: Path) -> None:
    """One path, or all below a prefix; a dry run deletes nothing; what is not there is said."""
    for path in ("a", "p/1", "p/2"):
        repo("put", "main", path, file)
    assert repo("rm", "main", "p/", "-r", "--dry-run", "--json").json["objects"] == 2
    repo("rm", "main", "a", "--yes")
    assert "no object" in one_sentence(repo("rm", "main", "a", "--yes", code=3).err)
    repo("rm", "main", "p/", "-r", "--yes")
    assert repo("ls", "main", "--json").json == []


def test_versions_are_made_and_undone(repo: Cli, file: Path) -> None:
    """Commit, log, show, diff, status, merge, revert, cherry-pick, rebase, blame: each reports what it did."""
    repo("put", "main", "a", file)
    assert [row["path"] for row in repo("status", "main", "--json").json] == ["a"]
    assert "a" in repo("diff", "main").out
    first = repo("commit", "main", "-m", "first\nmore", "--meta", "ticket=42", "--json").json
    assert (first["message"], first["metadata"]) == ("first\nmore", {"ticket": "42"})
    assert "Nothing is uncommitted" in repo("status", "main").out
    assert "no_changes" in repo("commit", "main", "-m", "again", "--json", code=2).error["kind"]
    repo("branch", "dev")
    repo("put", "dev", "b", file)
    repo("put", "dev", "c", file)
    repo("commit", "dev", "-m", "only b", "--path", "b")
    assert [row["path"] for row in repo("status", "dev", "--json").json] == ["c"]
    repo("commit", "dev", "-m", "and c")
    assert [row["path"] for row in repo("diff", "main", "dev", "--json").json] == ["b", "c"]
    assert repo("diff", "dev", "main", "--two-dot", "--prefix", "c", "--json").json[0]["change"] == "removed"
    merged = repo("merge", "dev", "main", "-m", "take it", "--json").json
    assert len(merged["parents"]) == 2
    assert len(repo("log", "main", "--first-parent", "--limit", "2", "--json").json) == 2
    (newest,) = repo("log", "main", "--first-parent", "--limit", "1", "--json").json
    assert newest in repo("log", "main~1..main", "--json").json
    assert repo("diff", "main~1..main", "--json").json == repo("diff", "main~1", "main", "--two-dot", "--json").json
    assert [row["message"] for row in repo("log", "main", "--path", "b", "--first-parent", "--json").json] == [
        "take it"
    ]
    assert "take it" in repo("show", "main").out
    assert repo("show", "main~1", "--json").json["id"] == first["id"]
    assert "and c" in repo("blame", "main", "c").out
    repo("revert", "main", "main", "--parent", "1")
    assert [row["path"] for row in repo("ls", "main", "--json").json] == ["a"]
    repo("cherry-pick", "main", "dev")
    assert [row["path"] for row in repo("ls", "main", "--json").json] == ["a", "c"]
    repo("branch", "late", "--source", first["id"])
    repo("put", "late", "late", file)
    repo("commit", "late", "-m", "late")
    rebased = repo("rebase", "late", "main", "--json").json
    assert rebased["message"] == "late"
    assert [row["path"] for row in repo("ls", "late", "--json").json] == ["a", "c", "late"]


def test_a_conflict_names_its_paths(repo: Cli, file: Path, tmp_path: Path) -> None:
    """A merge that cannot be ends with 4, lists where, and moves nothing; a strategy decides."""
    other = tmp_path / "other"
    other.write_bytes(b"other")
    repo("put", "main", "a", file)
    repo("commit", "main", "-m", "base")
    repo("branch", "dev")
    for branch, body in (("main", other), ("dev", tmp_path / "third")):
        body.write_bytes(branch.encode())
        repo("put", branch, "a", body)
        repo("commit", branch, "-m", branch)
    failed = repo("merge", "dev", "main", "--json", code=4).error
    assert (failed["kind"], failed["facts"]["paths"]) == ("merge_conflict", ["a"])
    repo("merge", "dev", "main", "--strategy", "source-wins", "--squash")


def test_a_difference_with_a_conflict_is_shown(repo: Cli, tmp_path: Path) -> None:
    """A path that both sides changed has the sign "!" and the kind "conflict", also where one side removed it."""
    body = tmp_path / "body"
    for branch in ("main", "dev", "main"):
        if branch == "dev":
            repo("branch", "dev")
        for path in ("both", "removed"):
            body.write_text(f"{branch} {path}")
            repo("put", branch, path, body)
        repo("commit", branch, "-m", branch, "--allow-empty")
        body.write_text("another base")
    repo("put", "main", "both", body)
    repo("rm", "main", "removed", "--yes")
    repo("commit", "main", "-m", "main again")
    document = repo("diff", "main", "dev", "--json").json
    assert [(item["path"], item["change"]) for item in document] == [("both", "conflict"), ("removed", "conflict")]
    assert [line.split()[:2] for line in repo("diff", "main", "dev").out.splitlines() if "!" in line] == [
        ["!", "both"],
        ["!", "removed"],
    ]


def test_a_strategy_decides_a_conflict_of_every_command(repo: Cli, tmp_path: Path) -> None:
    """Cherry-pick, revert and rebase take the option that their errors name."""
    body = tmp_path / "body"
    for branch in ("main", "dev", "main"):
        if branch == "dev":
            repo("branch", "dev")
        body.write_text(f"{branch} {body.exists()}")
        repo("put", branch, "a", body)
        repo("commit", branch, "-m", branch)
    commands = (("rebase", "dev", "main"), ("revert", "main", "main~1"), ("cherry-pick", "main", "dev"))
    for command in commands:
        failed = repo(*command, "--json", code=4).error
        assert failed["kind"] == "merge_conflict"
        assert "source-wins" in failed["message"]
    for command in commands:
        repo(*command, "--strategy", "source-wins", "--json")


def test_a_merge_of_what_is_uncommitted_says_so(repo: Cli, file: Path) -> None:
    """It has no changes, and the error says that the branch has some which are not committed."""
    repo("branch", "dev")
    assert "uncommitted" not in one_sentence(repo("merge", "dev", "main", code=2).err)
    repo("put", "dev", "a", file)
    assert "branch dev has uncommitted changes: commit them" in repo("merge", "dev", "main", code=2).err


def test_a_repeated_import_makes_no_commit(repo: Cli, tmp_path: Path) -> None:
    """The first says how many objects came, the second that nothing changed; a changed source makes a commit."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a", "b"):
        (source / name).write_bytes(b"1")
    assert "Imported 2 objects of" in repo("import", "main", source, "in/").out
    at = repo("show", "main", "--json").json["id"]
    assert "Nothing changed, no commit: main already has the 2 objects of" in repo("import", "main", source, "in/").out
    again = repo("import", "main", source, "in/", "--json").json
    assert (again["id"], again["imported"], again["changed"]) == (at, 2, False)
    (source / "a").write_bytes(b"22")
    changed = repo("import", "main", source, "in/", "--json").json
    assert (changed["parents"], changed["imported"], changed["changed"]) == ([at], 2, True)


def test_what_is_uncommitted_is_given_up(repo: Cli, file: Path) -> None:
    """A path, a prefix, everything, or the branch itself; a dry run shows what would go."""
    repo("put", "main", "kept", file)
    first = repo("commit", "main", "-m", "first", "--json").json["id"]
    for path in ("a", "p/1", "p/2", "q"):
        repo("put", "main", path, file)
    assert [row["path"] for row in repo("reset", "main", "--path", "p/", "--dry-run", "--json").json] == ["p/1", "p/2"]
    repo("reset", "main", "--path", "a", "--yes")
    repo("reset", "main", "--path", "p/", "--yes")
    assert [row["path"] for row in repo("status", "main", "--json").json] == ["q"]
    assert "not both" in one_sentence(repo("reset", "main", "--path", "a", "--hard", "main", code=2).err)
    assert "Discarded" in repo("reset", "main", "--yes").out
    assert repo("reset", "main", "--yes").out == "Nothing was uncommitted on main.\n"
    assert repo("reset", "main", "--hard", "main~1", "--yes", "--json").json["commit"] != first
    assert repo("ls", "main", "--json").json == []


def test_staging_is_compacted(repo: Cli, file: Path) -> None:
    """The command prints the outcome, and nothing that is read changes."""
    repo("put", "main", "a", file)
    assert repo("compact", "main", "--json").json["outcome"] == "published"
    assert [row["path"] for row in repo("ls", "main", "--json").json] == ["a"]


@pytest.mark.parametrize("home", ["folder", "beside", "http"], indirect=True)
def test_why_a_commit_is_kept(repo: Cli, file: Path) -> None:
    """Branches and tags that keep its objects, until when, or that none does."""
    repo("put", "main", "a", file)
    made = repo("commit", "main", "-m", "a", "--json").json["id"]
    repo("tag", "v1")
    answer = repo("why", "v1", "--json").json
    assert (answer["version"], [pin["name"] for pin in answer["pins"]]) == (made, ["main", "v1"])
    assert [pin["expires_ms"] is None for pin in answer["pins"]] == [True, True]
    told = repo("why", made[:12]).out.splitlines()
    assert told[0] == "Its objects are kept by branch main, tag v1."
    assert told[1].strip() == f"branch main (version {made[:12]})"
    assert told[2].strip() == f"tag v1 (version {made[:12]})"
    repo("put", "main", "b", file)
    repo("commit", "main", "-m", "b")
    repo("drop-tag", "v1", "--yes")
    repo("set-retention", "7")
    assert ", until " in repo("why", made).out
    repo("branch", "late")
    repo("put", "late", "c", file)
    lost = repo("commit", "late", "-m", "b", "--json").json["id"]
    repo("drop-branch", "late", "--yes")
    assert "No branch or tag keeps its objects" in repo("why", lost).out
    assert "mian" in repo("why", "mian", code=exits.NOT_FOUND).err


def test_branches_and_tags(repo: Cli, file: Path) -> None:
    """They are made, listed, protected, deleted and brought back."""
    repo("put", "main", "a", file)
    first = repo("commit", "main", "-m", "first", "--json").json["id"]
    repo("branch", "dev", "--source", "main~1")
    assert [row["branch"] for row in repo("branches", "--json").json] == ["dev", "main"]
    assert [row["branch"] for row in repo("branches", "--prefix", "d", "--json").json] == ["dev"]
    assert repo("protect", "ma*", "--json").json == {"protected": ["ma*"]}
    assert "protected" in repo("branches").out
    assert "protected" in one_sentence(repo("put", "main", "b", file, code=2).err)
    repo("protect", "ma*", "--off")
    assert repo("drop-branch", "dev", "--dry-run", "--json").json["dry_run"] is True
    repo("drop-branch", "dev", "--yes")
    assert "dev" in one_sentence(repo("ls", "dev", code=3).err)
    repo("undelete-branch", "dev")
    assert repo("tag", "v1", "main", "--json").json["commit"] == first
    assert "already" in one_sentence(repo("tag", "v1", "dev", code=4).err)
    assert repo("tags", "--json").json == [{"tag": "v1", "commit": first}]
    assert first[:12] in repo("tags").out
    assert repo("drop-tag", "v1", "--dry-run", "--json").json["commit"] == first
    repo("drop-tag", "v1", "--yes")
    assert "No tag" in repo("tags").out


def test_retention_and_collection(repo: Cli, file: Path) -> None:
    """Rules are set, shown and removed; a collection says what would go before it goes."""
    assert repo("retention", "--json").json == {"default_days": None, "branch_days": {}}
    repo("set-retention", "30", "--branch-days", "main=90")
    assert repo("retention", "--json").json == {"default_days": 30, "branch_days": {"main": 90}}
    assert "90 days" in repo("retention").out
    assert "number of days" in one_sentence(repo("set-retention", "30", "--branch-days", "main=x", code=2).err)
    repo("drop-retention", "--dry-run")
    repo("drop-retention", "--yes")
    assert "without a limit" in repo("retention").out
    repo("put", "main", "a", file)
    repo("put", "main", "a", file)
    repo("commit", "main", "-m", "a")
    planned = repo("collect", "--grace", "0 s", "--dry-run", "--json").json
    assert (planned["dry_run"], planned["deleted"]) == (True, 1)
    assert repo("collect", "--grace", "0 s", "--yes", "--json").json["deleted"] == 1
    assert repo("collect", "--yes", "--json").json["deleted"] == 0


def test_objects_are_imported(repo: Cli, tmp_path: Path) -> None:
    """A folder elsewhere becomes a commit; what may not be imported is refused."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "x").write_bytes(b"x")
    assert repo("import", "main", f"file://{source}/", "in/", "--json").json["message"].startswith("Import ")
    assert [row["path"] for row in repo("ls", "main", "in/", "--json").json] == ["in/x"]
    one_sentence(repo("import", "main", "ftp://nowhere/", "in/", code=2).err)


def test_repositories_are_made_listed_and_dropped(cli: Cli, home: str) -> None:
    """Made with a branch of any name, listed, dropped; names that are taken or cannot be are said."""
    assert cli("repo", "create", home, "second", "--default-branch", "trunk", "--json").json["name"] == "second"
    assert [row["name"] for row in cli("repo", "list", home, "--json").json] == ["analytics", "second"]
    assert "trunk" in cli("repo", "list", home).out
    taken = cli("repo", "create", home, "second")
    assert (taken.code, "already" in one_sentence(taken.err)) == (4, True)
    assert cli("repo", "create", home, "No Name").code == 2
    planned = cli("repo", "drop", home, "second", "--dry-run", "--json").json
    assert (planned["branches"], planned["tags"]) == (1, 0)
    assert cli("repo", "drop", home, "second", "--yes").code == 0
    missing = cli("repo", "ls", home, "analytcs", "main")
    assert missing.code == 3
    assert "Did you mean analytics?" in one_sentence(missing.err)


def test_access_keys(cli: Cli, home: str) -> None:
    """Made with a role, listed without secrets, rotated, and ended; the last administrator stays."""
    made = cli("key", "create", home, "--role", "read", "--repository", "analytics", "--json").json
    assert made["role"] == "read"
    rows = {item["id"]: item for item in cli("key", "list", home, "--json").json}
    assert rows[made["access_key_id"]]["repositories"] == ["analytics"]
    assert made["secret_access_key"] not in cli("key", "list", home).out
    again = cli("key", "rotate", home, made["access_key_id"], "--json").json
    assert again["secret_access_key"] != made["secret_access_key"]
    assert "is not shown again" in cli("key", "rotate", home, made["access_key_id"]).out
    assert cli("key", "revoke", home, made["access_key_id"], "--dry-run", "--json").json["role"] == "read"
    assert cli("key", "revoke", home, made["access_key_id"], "--yes").code == 0
    gone = cli("key", "revoke", home, made["access_key_id"], "--yes")
    assert (gone.code, "There is no access key" in one_sentence(gone.err)) == (3, True)
    limited = ("--table", "flights", "--table", "shop.orders", "--database", "lab")
    tables = cli("key", "create", home, *limited, "--json").json
    rows = {row["id"]: row for row in cli("key", "list", home, "--json").json}
    row = rows[tables["access_key_id"]]
    assert (row["repositories"], row["tables"]) == ([], ["default.flights", "shop.orders", "lab.*"])
    assert "shop.orders" in cli("key", "list", home).out
    assert cli("key", "create", home, "--table", "a.b.c").code == 2
    wrong = cli("key", "create", home, "--role", "king")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)


def test_a_copy_says_what_is_equal(repo: Cli, tmp_path: Path) -> None:
    """One file is, several are."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name, equal in (("a", "0 are"), ("b", "1 is"), ("c", "2 are")):
        (folder / name).write_text(name)
        assert f"; {equal} equal already." in repo("upload", "main", folder).out
