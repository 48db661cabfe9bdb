"""The bridge as a process: its protocol, requests at the same time, and its end."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.lake.lake import open_lake
from lakebed.spark.bridge import serve
from lakebed.spark.catalog import Session

WAIT_SECONDS = 60


def start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "lakebed.spark.bridge"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def request(number: int, verb: str, lake: str, **body: object) -> bytes:
    return json.dumps({"id": number, "verb": verb, "lake": lake, "body": body}).encode() + b"\n"


def test_requests_are_answered_by_their_ids_and_the_process_ends_with_its_input(tmp_path: Path) -> None:
    """Fifty at the same time, over one pipe."""
    lake = open_lake(str(tmp_path / "lake"))
    table = lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2, 3]}))
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["lakebed"] == lakebed.__version__
    for number in range(1, 51):
        process.stdin.write(request(number, "load", lake.url, table="db.t"))
    process.stdin.flush()
    replies = [json.loads(process.stdout.readline()) for _ in range(50)]
    assert sorted(reply["id"] for reply in replies) == list(range(1, 51))
    assert {reply["ok"]["row_count"] for reply in replies} == {3}
    process.stdin.close()
    assert process.wait(WAIT_SECONDS) == 0
    assert process.stdout.read() == b""
    process.stdout.close()


def test_what_python_prints_is_no_part_of_the_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that prints when it is loaded, as some libraries do."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os\natexit.register(lambda: None)\n"
        "import lakebed.spark.catalog.tables as tables\n"
        "found = tables.databases\n"
        "tables.databases = lambda lake: (print('loud'), os.write(1, b'louder\\n'), found(lake))[-1]\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(lakebed.__file__).parents[1]}")
    lake = open_lake(str(tmp_path / "lake"))
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request(1, "list_databases", lake.url))
    process.stdin.flush()
    # The process ends with its input, whatever it is doing: the reply comes first.
    lines = [process.stdout.readline()]
    while b'"id":1' not in lines[-1] and lines[-1]:
        lines.append(process.stdout.readline())
    rest, _ = process.communicate(timeout=WAIT_SECONDS)
    lines += rest.splitlines()
    assert json.loads(lines[0])["lakebed"] == lakebed.__version__
    assert [json.loads(line)["id"] for line in lines[1:]] == [1]


def test_a_defect_is_an_answer_and_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request is answered too."""
    from lakebed.spark.catalog import VERBS

    def broken(self: object, session: Session, lake_url: str) -> dict[str, object]:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(VERBS["list_databases"], "run", broken)
    sink = io.BytesIO()
    lines = request(1, "list_databases", str(tmp_path / "lake")) + request(2, "list_procedures", "x")
    serve(io.BytesIO(lines), sink, Session(tmp_path), waits=True)
    replies = {reply.get("id"): reply for reply in map(json.loads, sink.getvalue().splitlines())}
    assert replies[1]["error"]["group"] == "InternalError"
    assert "names" in replies[2]["ok"]
