"""Mistakes of commands on repositories, and what a server's commands say and how they end: one sentence, one code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

import lakebed.repo
from lakebed.cli import exits
from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from worlds.listener import Reply, listen

Cli = Callable[..., Any]
GOLDEN = Path(__file__).parents[1] / "golden" / "lakefs"
"""A namespace that lakeFS has written, and its dump."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A running server with a repository, and no credentials in the environment."""
    monkeypatch.delenv("LAKEBED_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("LAKEBED_SECRET_ACCESS_KEY", raising=False)
    with start_server(tmp_path / "lake", options=ServerOptions(durable=False)) as running:
        running.site.repositories.create("analytics")
        yield running


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None, str | None], None]:
    """Put credentials into the environment."""

    def put(access_key: str | None, secret: str | None) -> None:
        monkeypatch.setenv("LAKEBED_ACCESS_KEY_ID", str(access_key))
        monkeypatch.setenv("LAKEBED_SECRET_ACCESS_KEY", str(secret))

    return put


def refused(answer: Any, code: int, *words: str) -> None:
    """It ended with a code and one sentence that has these words."""
    assert answer.code == code, (answer.out, answer.err)
    assert answer.out == ""
    assert answer.err.startswith("lakebed: ")
    assert len(answer.err.splitlines()) == 1
    for word in words:
        assert word in answer.err


def test_without_credentials_it_says_which_are_needed(cli: Cli, server: Running, tmp_path: Path) -> None:
    """A server that is named, or met because it owns the folder, wants a key; reading the folder needs none."""
    file = tmp_path / "file"
    file.write_bytes(b"x")
    endpoint = server.started.endpoint
    for lake in (endpoint, str(tmp_path / "lake")):
        refused(
            cli("repo", "put", lake, "analytics", "main", "a", file),
            2,
            endpoint,
            "LAKEBED_ACCESS_KEY_ID",
            "LAKEBED_SECRET_ACCESS_KEY",
        )
    assert cli("repo", "ls", tmp_path / "lake", "analytics", "main").code == 0


def test_wrong_credentials_are_said(
    cli: Cli, server: Running, use: Callable[[str | None, str | None], None], tmp_path: Path
) -> None:
    """An unknown key, a wrong secret, a role that is not enough, a repository that is not for this key."""
    endpoint, messages = server.started.endpoint, server.started
    for access_key, secret in (("nobody", "wrong"), (messages.access_key, "wrong"), ("nobody", messages.secret)):
        use(access_key, secret)
        answer = cli("repo", "list", endpoint)
        refused(answer, 2, "access key")
        assert str(messages.secret) not in answer.err
    use(messages.access_key, messages.secret)
    made = cli("key", "create", endpoint, "--role", "read", "--table", "shop.orders", "--json").json
    rows = {row["id"]: row for row in cli("key", "list", endpoint, "--json").json}
    assert rows[made["access_key_id"]]["tables"] == ["shop.orders"]
    use(made["access_key_id"], made["secret_access_key"])
    refused(cli("repo", "ls", endpoint, "analytics", "main"), 2, "may not use")
    reader = server.site.keys.create(role="read", repositories=("analytics",))
    use(reader.key.id, reader.secret)
    assert cli("repo", "ls", endpoint, "analytics", "main").code == 0
    refused(cli("repo", "commit", endpoint, "analytics", "main", "-m", "x"), 2, "role read", "role write")
    refused(cli("repo", "ls", endpoint, "other-one", "main"), 2, "may not use")
    refused(cli("key", "list", endpoint), 2, "role admin")
    failed = cli("key", "list", endpoint, "--json")
    assert (failed.code, failed.error["kind"]) == (2, "forbidden")


def test_a_server_that_is_gone_is_said(
    cli: Cli, server: Running, use: Callable[[str | None, str | None], None]
) -> None:
    """Nothing answers at the URL: 6, and nothing happened."""
    use(server.started.access_key, server.started.secret)
    endpoint = server.started.endpoint
    server.stop()
    refused(cli("repo", "list", endpoint), 6, endpoint, "does not answer")
    refused(cli("repo", "commit", endpoint, "analytics", "main", "-m", "x"), 6, endpoint)


@pytest.mark.parametrize(
    "url", ["http://", "http://user:pass@127.0.0.1:1", "http://127.0.0.1:99999999", "http://127.0.0.1:1?x=1"]
)
def test_a_wrong_url_is_said(cli: Cli, use: Callable[[str | None, str | None], None], url: str) -> None:
    """What cannot be a server's URL is refused before anything is asked, and no password is repeated."""
    use("key", "secret")
    answer = cli("repo", "list", url)
    refused(answer, 2, "http://host:port")
    assert "pass@" not in answer.err


@pytest.mark.parametrize(("status", "code"), [(404, 2), (401, 2), (500, 6), (503, 6), (200, 5)])
def test_something_else_that_answers_is_said(
    cli: Cli, use: Callable[[str | None, str | None], None], status: int, code: int
) -> None:
    """Another service at the URL is not our server, and the error says so."""
    use("key", "secret")
    with listen(lambda request: Reply(status, b"<html/>")) as port:
        answer = cli("repo", "list", f"http://127.0.0.1:{port}")
    refused(answer, code, "not a lakebed server")


def test_nothing_there_is_said(cli: Cli, tmp_path: Path) -> None:
    """A folder without repositories, a repository, branch or path that is not there: 3, and what to do."""
    refused(cli("repo", "list", tmp_path / "nothing"), 3, "no folder")
    (tmp_path / "empty").mkdir()
    refused(cli("repo", "list", tmp_path / "empty"), 3, "no repositories")
    refused(cli("repo", "ls", tmp_path / "nothing", "analytics", "main"), 3)
    assert not (tmp_path / "nothing").exists()
    with lakebed.repo.open_all(tmp_path / "lake", durable=False) as made:
        made.create("analytics")
    lake = tmp_path / "lake"
    refused(cli("repo", "ls", lake, "analytics", "nothing"), 3, "nothing")
    refused(cli("repo", "stat", lake, "analytics", "main", "nothing"), 3, "nothing")
    refused(cli("repo", "get", lake, "analytics", "main", "nothing"), 3, "nothing")
    refused(cli("repo", "put", lake, "analytics", "main", "a", tmp_path / "no-file"), 3, "no file")
    refused(cli("repo", "put", lake, "analytics", "main", "../a", __file__), 2)
    refused(cli("repo", "ls", lake, "analytics", "main~x"), 2)
    refused(cli("repo", "collect", lake, "analytics", "--grace", "soon"), 2)


# ---- the server's own command


def serving(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """``lakebed serve`` in a process of its own."""
    command = [sys.executable, "-m", "lakebed.cli", "serve", str(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_server_starts_ends_and_stands_alone(tmp_path: Path) -> None:
    """It prints its first key; a second one on the same lake is sent to it; SIGTERM ends it with 0."""
    folder = tmp_path / "lake"
    log = ["--port", "0", "--access-log", ""]
    first = serving(folder, *log, "--json")
    try:
        assert first.stdout is not None
        said = ""
        while not said.rstrip().endswith("}"):
            said += first.stdout.readline()
        document = json.loads(said)
        assert urllib3.request("GET", f"{document['endpoint']}/healthcheck").status == 200
        second = serving(folder, *log)
        _, problem = second.communicate()
        assert (second.returncode, problem.count("\n")) == (4, 1)
        assert document["endpoint"] in problem
        credentials = {
            "LAKEBED_ACCESS_KEY_ID": document["access_key_id"],
            "LAKEBED_SECRET_ACCESS_KEY": document["secret_access_key"],
        }
        made = subprocess.run(
            [sys.executable, "-m", "lakebed.cli", "repo", "create", str(folder), "analytics"],
            env={**os.environ, **credentials},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "Created the repository analytics" in made.stdout
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0
        assert first.stderr is not None
        assert first.stderr.read() == ""
    finally:
        first.kill()
        first.communicate()
    with lakebed.repo.open_all(folder) as home:
        assert home.exists("analytics")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "0.0.0.0"), "--allow-remote"),
        (("--workers", "2"), "postgresql"),
        (("--port", "70000"), "--port"),
        (("--port", "x"), "--port"),
    ],
)
def test_a_wrong_server_is_refused(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    """What cannot be served is said before anything is made."""
    refused(cli("serve", tmp_path / "lake", *arguments), 2, words)
    assert not (tmp_path / "lake").exists()


def test_a_port_in_use_is_said(cli: Cli, server: Running, tmp_path: Path) -> None:
    """Another server listens there: 6, and which port it was."""
    port = server.started.endpoint.rsplit(":", 1)[1]
    refused(cli("serve", tmp_path / "other", "--port", port), 6, port)


def test_mistyped_names_and_paths_are_answered_by_what_is_there(cli: Cli, tmp_path: Path) -> None:
    """A branch, a tag in place of a branch, a path, a folder in place of a file, a folder that is not there."""
    lake, file = tmp_path / "lake", tmp_path / "a.csv"
    file.write_bytes(b"x")
    assert cli("repo", "create", lake, "ops").code == 0
    assert cli("repo", "put", lake, "ops", "main", "raw/a.csv", file).code == 0
    assert cli("repo", "tag", lake, "ops", "v1", "main").code == 0
    refused(cli("repo", "commit", lake, "ops", "mian", "-m", "x"), 3, "no branch 'mian'. Did you mean main?")
    refused(cli("repo", "commit", lake, "ops", "v1", "-m", "x"), 3, "no branch 'v1'. That is a tag")
    refused(cli("repo", "commit", lake, "ops", "zzz", "-m", "x"), 3, "It has the branch main.")
    refused(cli("repo", "ls", lake, "ops", "zzz"), 3, "It has the branch main and the tag v1.")
    refused(cli("repo", "rm", lake, "ops", "main", "raw"), 3, "no object raw", "--recursive")
    refused(cli("repo", "rm", lake, "ops", "main", "nope/", "--recursive"), 3, "no path begins with nope/")
    refused(cli("repo", "put", lake, "ops", "main", "b", tmp_path), 2, "is a folder")
    refused(cli("repo", "get", lake, "ops", "main", "raw/a.csv", tmp_path), 2, "is a folder")
    refused(cli("repo", "get", lake, "ops", "main", "raw/a.csv", tmp_path / "no" / "b"), 3, "There is no folder")
    refused(cli("repo", "ls", lake, "ops", "main", "--limit", "abc"), 2, "not an integer")
    refused(cli("key", "create", lake, "--role", "boss"), 2, "'read', 'write', 'admin'")
    assert cli("repo", "reset", lake, "ops", "main", "--path", "raw").out == "Nothing was uncommitted at raw on main.\n"
    assert cli("repo", "reset", lake, "ops", "main", "--path", "raw", "--dry-run").out == (
        "Nothing would be discarded.\n"
    )


def test_a_process_that_owns_the_repositories_is_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only what a command can do about it is said."""
    monkeypatch.setattr("lakebed.cli.repo_context._OWNER_WAIT_MS", 0)
    file = tmp_path / "a.csv"
    file.write_bytes(b"x")
    with lakebed.repo.open(tmp_path / "lake" / "ops.repo"):
        answer = cli("repo", "put", tmp_path / "lake", "ops", "main", "a", file)
        refused(answer, 4, f"process {os.getpid()}", "lakebed serve")
        assert "take_over" not in answer.err


@pytest.mark.parametrize("owner", ["process", "server"])
def test_collecting_a_lake_whose_repositories_are_owned(cli: Cli, tmp_path: Path, owner: str) -> None:
    """It says that they were not collected and who owns them, and ends with 4; a dry run needs no ownership."""
    lake = tmp_path / "lake"
    owned = (
        start_server(lake, options=ServerOptions(durable=False)) if owner == "server" else lakebed.repo.open_all(lake)
    )
    with owned:
        answer = cli("collect", lake, "--yes")
        assert answer.code == exits.CONFLICT
        assert "repositories: not collected. The repositories at file://" in answer.out
        assert "nothing to delete" not in answer.out
        (report,) = [row for row in cli("collect", lake, "--yes", "--json").json if row["problem"]]
        assert (report["store"], report["problem_kind"]) == ("repositories", "owned")
        assert cli("collect", lake, "--dry-run").code == exits.OK
    assert cli("collect", lake, "--yes").code == exits.OK


def test_collecting_a_lake_with_a_damaged_store(cli: Cli, tmp_path: Path) -> None:
    """The others are collected, and the command ends with 5."""
    lake = tmp_path / "lake"
    for name in ("damaged", "sound"):
        assert cli("kv", "put", lake, name, "k", "v").code == exits.OK
    max((lake / "damaged.kv" / "manifest").iterdir()).write_bytes(b"rubbish")
    for command in (("collect", lake, "--yes"), ("collect", lake, "--dry-run")):
        answer = cli(*command)
        assert answer.code == exits.FAULTY
        assert "damaged.kv: not collected. " in answer.out


@pytest.mark.parametrize("command", ["ls", "collect"])
def test_a_server_is_no_lake(cli: Cli, command: str) -> None:
    """Commands on a whole lake say what takes a server's URL."""
    refused(cli(command, "http://127.0.0.1:8000"), 2, "repo collect http://127.0.0.1:8000 REPOSITORY")


def test_a_key_for_a_repository_that_is_not_there_is_refused(cli: Cli, tmp_path: Path) -> None:
    """Nothing is made, neither a key nor a lake; the error names what is near."""
    lake = tmp_path / "lake"
    assert cli("key", "create", lake, "--repository", "nosuch").code == exits.NOT_FOUND
    assert not lake.exists()
    assert cli("repo", "create", lake, "analytics").code == exits.OK
    refused(cli("key", "create", lake, "--repository", "analytic"), 3, "analytics")
    assert cli("key", "list", lake, "--json").json == []
    assert cli("key", "create", lake, "--repository", "analytics").code == exits.OK


def test_an_import_of_a_wrong_source_leaves_no_repository(cli: Cli, tmp_path: Path) -> None:
    """The dump is looked for before anything is made, and the name stays free; the right source then takes it."""
    lake, wrong = tmp_path / "lake", tmp_path / "wrong"
    wrong.mkdir()
    command = ("repo", "import-lakefs", lake, "analytics", "--from")
    refs = ("--refs", GOLDEN / "refs.json")
    refused(cli(*command, wrong), exits.NOT_FOUND, "refs-dump")
    refused(cli(*command, wrong, *refs), exits.NOT_FOUND, "is not the one that the dump was made of")
    refused(cli(*command, tmp_path / "missing", *refs), exits.NOT_FOUND, "missing")
    branch = ("--default-branch", "trunk")
    refused(cli(*command, GOLDEN / "namespace", *refs, *branch), exits.USAGE, "the branches of the dump are")
    assert not lake.exists()
    imported = cli(*command, GOLDEN / "namespace", *refs)
    assert imported.code == exits.OK, imported.err


def test_an_import_that_a_server_refuses_goes_on(cli: Cli, tmp_path: Path, use: Callable[..., None]) -> None:
    """The server looks at the source when the repository is made: the error says so, and the right source fills it."""
    golden = tmp_path / "golden"
    shutil.copytree(GOLDEN / "namespace", golden)
    options = ServerOptions(durable=False, import_from=[str(tmp_path)])
    with start_server(tmp_path / "lake", options=options) as running:
        use(running.started.access_key, running.started.secret)
        command = ("repo", "import-lakefs", running.started.endpoint, "analytics", "--refs", GOLDEN / "refs.json")
        wrong = (*command, "--from", tmp_path / "wrong")
        refused(cli(*wrong), exits.NOT_FOUND, "The repository analytics was made for it: import again, or drop it.")
        assert "was made for it" not in cli(*wrong).err
        answer = cli(*command, "--from", golden)
        assert answer.code == exits.OK, answer.err
        assert [row["branch"] for row in cli("repo", "branches", running.started.endpoint, "analytics", "--json").json]
