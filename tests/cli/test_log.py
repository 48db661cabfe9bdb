"""What `-v` logs: fields, a logger a package, and never a secret."""

from __future__ import annotations

import json
import logging
import socket
from typing import Any

import pytest

from lakebed import kv, log
from lakebed.cli import exits
from lakebed.repo.transport import http_client


def test_nothing_is_logged_unasked(cli: Any, lake: str) -> None:
    """Standard error stays empty without -v, and afterwards again."""
    assert cli("table", "tag", lake, "flights", "a").err == ""
    assert cli("table", "tag", lake, "flights", "b", "-v").err != ""
    assert cli("table", "tag", lake, "flights", "c").err == ""


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_a_server_that_is_waited_for_is_named(cli: Any, monkeypatch: pytest.MonkeyPatch, json_flag: list[str]) -> None:
    """Also without -v: a command must not stand still without a word."""
    for name, seconds in {"_NOTE_S": 0.05, "_SILENT_S": 0.1, "_HEALTH_S": 0.1}.items():
        monkeypatch.setattr(http_client, name, seconds)
    monkeypatch.setenv("LAKEBED_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("LAKEBED_SECRET_ACCESS_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        done = cli("repo", "log", url, "analytics", "main", *json_flag)
    assert done.code == exits.UNAVAILABLE
    first, *_ = done.err.splitlines()
    note = f"waiting for a reply: {url}"
    assert first == (json.dumps({"note": note}, separators=(",", ":")) if json_flag else f"lakebed: note: {note}")


def test_what_becomes_a_version_is_logged(cli: Any, lake: str) -> None:
    """-v names the table and the snapshot, the database that is opened, and the time that the command took."""
    done = cli("table", "delete", lake, "flights", "--where", "id = 1", "-v")
    assert "lakebed.table committed table=" in done.err
    assert " snapshot=3 " in done.err
    assert "lakebed.cli ran command='lakebed table delete' ms=" in done.err
    assert "lakebed.objects" not in done.err
    assert "lakebed.kv opening for writing database=" in cli("-v", "kv", "put", lake, "serving", "k", "v").err


def test_requests_are_logged_as_json(cli: Any, lake: str) -> None:
    """-vv with --json writes a line for every request, each an object with the same fields."""
    done = cli("-vv", "table", "tags", lake, "flights", "--json")
    assert done.code == exits.OK
    lines = [json.loads(line)["log"] for line in done.err.splitlines()]
    requests = [line for line in lines if line["logger"] == "lakebed.objects"]
    assert any(line["path"] == "default.db/flights/schema/schema-0" for line in requests)
    assert {"time_ms", "level", "logger", "message", "path", "ms", "bytes_read"} <= requests[0].keys()
    assert lines[-1]["message"] == "ran"
    assert isinstance(done.json, list), "the log is not in the result"


SECRETS = [
    "s3://user:hunter2@bucket/lake",
    "postgresql://me:hunter2@host/database",
    "https://bucket/x?X-Amz-Signature=hunter2&X-Amz-Credential=hunter2",
    "aws_secret_access_key=hunter2, region=x",
    '{"password": "hunter2", "user": "me"}',
    "Authorization token: hunter2",
]


@pytest.mark.parametrize("text", SECRETS)
def test_no_secret_is_logged(text: str) -> None:
    """Neither in a message nor in a field, in neither form."""
    assert "hunter2" not in log.redact(text)
    record = logging.LogRecord("lakebed.x", logging.INFO, "", 0, text, None, None)
    record.fields = {"url": text}
    for formatter in (log._Json(), log._Text()):
        assert "hunter2" not in formatter.format(record)


def test_a_program_reads_the_fields(lake: str) -> None:
    """A handler of a program's own gets the fields as a dictionary, of the packages that it listens to."""
    seen: list[Any] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append((record.name, record.getMessage(), record.fields))

    listened, handler = logging.getLogger("lakebed.kv"), Keeping()
    listened.addHandler(handler)
    listened.setLevel(logging.INFO)
    try:
        with kv.open(f"{lake}/serving.kv", durable=False) as database:
            database.put(b"k", b"v")
    finally:
        listened.removeHandler(handler)
        listened.setLevel(logging.NOTSET)
    assert seen[0][:2] == ("lakebed.kv", "opening for writing")
    assert seen[0][2]["database"] == f"file://{lake}/serving.kv"
