"""``lakebed kv``: every command, its errors and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed import kv
from lakebed.cli import exits
from lakebed.clock import SystemClock
from lakebed.kv import writer


@pytest.fixture
def kv_cli(cli: Any, tmp_path: Path) -> Any:
    """``kv_cli("get", "a")``: a command on a database of its own, in a lake."""

    def call(*arguments: object) -> Any:
        command, *rest = arguments
        return cli("kv", command, tmp_path / "lake", "orders", *rest)

    return call


@pytest.fixture
def orders(kv_cli: Any, tmp_path: Path) -> str:
    """A database with the keys a to e, and one of them overwritten after a checkpoint named ``first``."""
    url = str(tmp_path / "lake" / "orders.kv")
    with kv.open(url) as database:
        for number, key in enumerate("abcde"):
            database.put(key.encode(), str(number).encode())
        database.create_checkpoint(kv.CheckpointOptions(name="first"))
        database.put(b"a", b"new")
        database.flush(memtable=True)
    return url


def test_put_get_delete(kv_cli: Any) -> None:
    """A key is written, read and deleted; one that is not there ends with its own exit code."""
    assert kv_cli("put", "k", "v").code == exits.OK
    assert kv_cli("get", "k").out == "v\n"
    assert kv_cli("get", "k", "--json").json == {"key": "k", "value": "v"}
    assert kv_cli("delete", "k", "--dry-run").out == "Would delete 'k'.\n"
    assert kv_cli("delete", "k").code == exits.OK
    assert kv_cli("delete", "k", "--dry-run", "--json").json["there"] is False
    missing = kv_cli("get", "k", "--json")
    assert (missing.code, missing.error["kind"]) == (exits.NOT_FOUND, "key_not_found")


def test_bytes_that_are_no_text(kv_cli: Any) -> None:
    """Hexadecimal and base64 carry any bytes both ways; what is neither is refused."""
    assert kv_cli("put", "00ff", "deadbeef", "--encoding", "hex").code == exits.OK
    assert kv_cli("get", "AP8=", "--encoding", "base64").out == "3q2+7w==\n"
    assert kv_cli("put", "a\tb", "line\n").code == exits.OK
    assert kv_cli("scan", "--format", "tsv", "--from", "a").out == "a\\tb\tline\\n\n"
    assert kv_cli("scan", "--encoding", "hex", "--format", "tsv", "--limit", 1).out == "00ff\tdeadbeef\n"
    wrong = kv_cli("get", "xyz", "--encoding", "hex")
    assert wrong.code == exits.USAGE
    assert wrong.err == "lakebed: 'xyz' is not written as hex: write it so, or choose another --encoding.\n"


def test_a_value_from_standard_input(kv_cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` reads the value, byte for byte."""
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"\x00\xffline\n")))
    assert kv_cli("put", "k", "-").code == exits.OK
    assert kv_cli("get", "k", "--encoding", "utf8").out == "\x00\\xffline\n\n"


def test_scan_selects(kv_cli: Any, orders: str) -> None:
    """Ranges, prefix, order, limit, count and formats."""
    keys = lambda *options: [row["key"] for row in kv_cli("scan", *options, "--json").json]  # noqa: E731
    assert keys() == list("abcde")
    assert keys("--from", "b", "--to", "d") == ["b", "c"]
    assert keys("--prefix", "c") == ["c"]
    assert keys("--reverse", "--limit", 2) == ["e", "d"]
    assert kv_cli("scan", "--count").out == "5\n"
    assert kv_cli("scan", "--count", "--from", "c", "--json").json == {"count": 3}
    assert kv_cli("scan", "--count", "--limit", 2).out == "2\n"
    lines = kv_cli("scan", "--format", "jsonl", "--limit", 1).out.splitlines()
    assert [json.loads(line) for line in lines] == [{"key": "a", "value": "new"}]
    assert kv_cli("scan", "--prefix", "z").out == "No keys.\n"
    both = kv_cli("scan", "--prefix", "a", "--from", "b")
    assert both.code == exits.USAGE


def test_reading_at_a_checkpoint(kv_cli: Any, orders: str) -> None:
    """``--checkpoint`` reads what was pinned, by name or id."""
    assert kv_cli("get", "a").out == "new\n"
    assert kv_cli("get", "a", "--checkpoint", "first").out == "0\n"
    unknown = kv_cli("get", "a", "--checkpoint", "nobody", "--json")
    assert (unknown.code, unknown.error["kind"]) == (exits.NOT_FOUND, "invalid_db_state")


def test_checkpoints_live_and_end(kv_cli: Any, orders: str) -> None:
    """Create, list, refresh, delete; lifetimes as people and as ISO 8601 write them."""
    made = kv_cli("tag", "-l", "7days 30min 10s", "weekly", "--json").json
    listed = {row["name"]: row for row in kv_cli("tags", "--json").json}
    weekly = listed["weekly"]
    assert weekly["id"] == made["id"]
    assert weekly["expires_ms"] - weekly["created_ms"] == (7 * 86_400 + 30 * 60 + 10) * 1000
    again = kv_cli("tag", "-s", "first", "again", "--json").json
    assert again["manifest_id"] == listed["first"]["manifest_id"]
    assert kv_cli("refresh-tag", "weekly", "-l", "P1DT2H").code == exits.OK
    assert kv_cli("refresh-tag", made["id"]).out == "The checkpoint weekly never ends.\n"
    assert [row["name"] for row in kv_cli("tags", "-n", "weekly", "--json").json] == ["weekly"]
    assert kv_cli("drop-tag", "weekly").code == exits.OK
    assert kv_cli("tags", "-n", "weekly").out.startswith("No checkpoint.")
    taken = kv_cli("tag", "first", "--json")
    assert taken.code == exits.CONFLICT
    wrong = kv_cli("tag", "-l", "soon")
    assert wrong.code == exits.USAGE
    assert wrong.err.count("\n") == 1
    for command in (("refresh-tag", "nobody"), ("drop-tag", "nobody")):
        assert kv_cli(*command).code == exits.NOT_FOUND


def test_a_clone_and_its_pin(cli: Any, kv_cli: Any, orders: str, tmp_path: Path) -> None:
    """A clone reads what its parent's checkpoint pins; its pin goes by force only, and protects the parent."""
    clone = tmp_path / "lake" / "copy.kv"
    made = kv_cli("branch", "copy", "--checkpoint", "first", "--json")
    assert made.code == exits.OK
    assert cli("kv", "--path", clone, "get", "a").out == "0\n"
    pin = next(row for row in kv_cli("tags", "--json").json if row["owner"]["kind"] == "clone")
    assert kv_cli("drop-tag", pin["id"]).code == exits.USAGE
    kv_cli("drop-tag", "first")
    refused = kv_cli("drop", "--hard", "--yes", "--json")
    assert (refused.code, refused.error["kind"]) == (exits.USAGE, "invalid_deletion")
    assert kv_cli("get", "a").out == "new\n"
    assert cli("kv", "--path", clone, "drop", "--hard", "--yes").code == exits.OK
    gone = cli("kv", "--path", clone, "get", "a", "--json")
    assert (gone.code, gone.error["kind"]) == (exits.USAGE, "invalid_db_state")
    assert kv_cli("drop", "--hard", "--yes").code == exits.OK
    assert kv_cli("put", "a", "1").code == exits.USAGE
    assert kv_cli("put", "a", "1", "--after-destroy").code == exits.OK
    assert kv_cli("scan", "--count").out == "1\n"


def test_a_branch_never_takes_an_existing_database(cli: Any, kv_cli: Any, orders: str, tmp_path: Path) -> None:
    """A second `branch` to the same name fails and leaves what was written there."""
    lake = tmp_path / "lake"
    assert kv_cli("branch", "fork").code == exits.OK
    cli("kv", "put", lake, "fork", "mine", "1")
    for new in ("fork", str(lake / "fork.kv")):
        again = kv_cli("branch", new, "--json")
        assert (again.code, again.error["kind"]) == (exits.CONFLICT, "database_exists")
    assert cli("kv", "get", lake, "fork", "mine").out == "1\n"


def test_restore_brings_the_past_back(kv_cli: Any, orders: str) -> None:
    """The old value is back, and the present stays pinned."""
    before = len(kv_cli("tags", "--json").json)
    assert kv_cli("restore", "first", "--yes").code == exits.OK
    assert kv_cli("get", "a").out == "0\n"
    assert len(kv_cli("tags", "--json").json) == before + 1


def test_collecting_has_a_dry_run(kv_cli: Any, orders: str) -> None:
    """What a dry run names is what goes; afterwards everything pinned reads as before."""
    for number in range(3):
        kv_cli("put", f"x{number}", "1")
    planned = kv_cli("collect", "--grace", "0s", "--dry-run", "--json").json
    assert planned["dry_run"]
    assert planned["deleted"]
    done = kv_cli("collect", "--grace", "0s", "--json").json
    assert done["deleted"] >= planned["deleted"]
    assert kv_cli("get", "a", "--checkpoint", "first").out == "0\n"
    assert kv_cli("scan", "--count").out == "8\n"
    assert kv_cli("collect", "--grace", "sometimes").code == exits.USAGE


def test_a_collection_of_several_databases_is_one_document(
    cli: Any, kv_cli: Any, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list unless one database is named, however many the lake has; a watch prints a line for each report."""
    lake = tmp_path / "lake"
    alone = cli("kv", "collect", lake, "--json").json
    assert [report["store"] for report in alone] == ["orders.kv"]
    cli("kv", "put", lake, "other", "k", "v")
    for names in ((), ("orders", "other")):
        several = cli("kv", "collect", lake, *names, "--json").json
        assert [report["store"] for report in several] == ["orders.kv", "other.kv"]
    named = cli("kv", "collect", "--path", orders, "--json").json
    assert named["store"] == "orders.kv"

    def interrupted(clock: SystemClock, seconds: float) -> None:
        if seconds == 60:
            raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", interrupted)
    watched = cli("kv", "collect", lake, "--grace", "0s", "--watch", "--interval", "1min", "--json")
    assert {json.loads(line)["store"] for line in watched.out.splitlines()} == {"orders.kv", "other.kv"}


def test_compaction_as_a_command(kv_cli: Any, orders: str) -> None:
    """Files of level 0 become one run; nothing changes for readers."""
    with kv.open(orders, options=kv.DatabaseOptions(compaction=False)) as database:
        for number in range(3):
            database.put(b"n%d" % number, b"1")
            database.flush(memtable=True)
    shape = kv_cli("compact", "--full", "--json").json
    assert (shape["l0"], shape["runs"]) == (0, 1)
    assert kv_cli("scan", "--count").out == "8\n"
    assert kv_cli("compact", "--json").json["compactions"] == 0


def test_commands_that_write_leave_a_short_log_and_few_files(
    cli: Any, kv_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key at a time, as a timer does it: rows go into files, files are merged, and a branch copies little."""
    monkeypatch.setattr(writer, "LOG_OBJECTS_LEFT_MAX", 2)
    for number in range(40):
        assert kv_cli("put", f"k{number:02}", "v").code == exits.OK
    document = kv_cli("stats", "--json").json
    assert document["log_objects"] <= 2
    assert document["level_0_files"] <= 12
    assert document["runs"] >= 1
    assert kv_cli("scan", "--count").out == "40\n"
    assert kv_cli("branch", "fork").code == exits.OK
    assert len(list((tmp_path / "lake" / "fork.kv").glob("wal/*"))) <= 5


def test_compaction_brings_the_log_into_files(kv_cli: Any, tmp_path: Path) -> None:
    """Where no process writes; the log of a database that is open stays with its writer."""
    kv_cli("put", "a", "1")
    assert kv_cli("compact", "--full").out.startswith("1 compaction: 0 files of level 0 and 1 run")
    assert kv_cli("stats", "--json").json["log_objects"] == 0
    with kv.open(str(tmp_path / "lake" / "orders.kv")) as database:
        database.put(b"b", b"2")
        assert kv_cli("compact").code == exits.OK
        database.put(b"c", b"3")
    assert kv_cli("scan", "--count").out == "3\n"


def test_manifests_can_be_looked_at(kv_cli: Any, orders: str) -> None:
    """The newest or any other, and the list of them with what pins them."""
    listed = kv_cli("manifests", "--json").json
    assert any("first" in " ".join(entry["pinned_by"]) for entry in listed)
    newest = kv_cli("manifest").json
    assert newest["manifest_id"] == listed[-1]["manifest_id"]
    assert kv_cli("manifest", "-i", listed[0]["manifest_id"]).json["manifest_id"] == listed[0]["manifest_id"]
    assert kv_cli("manifest", "-i", 99_999).code == exits.NOT_FOUND
    assert kv_cli("stats", "--json").json["manifest"] == newest["manifest_id"]
    assert "level 0 files" in kv_cli("stats").out


def test_a_version_has_one_number_everywhere(cli: Any, kv_cli: Any, tmp_path: Path) -> None:
    """Tags, pins, history, ls and stats name it alike, an error names what can be read, and every verb takes it."""
    lake = tmp_path / "lake"
    for number in range(3):
        kv_cli("put", f"k{number}", str(number))
        said = kv_cli("tag", f"t{number}").out
    numbers = {row["name"]: row["version"] for row in kv_cli("tags", "--json").json}
    assert f"pins version {numbers['t2']} and never ends" in said
    assert numbers == {row["name"]: row["version"] for row in cli("pins", lake, "--json").json}
    history = [row["version"] for row in cli("history", lake, "database:orders", "--json").json]
    assert set(numbers.values()) <= set(history)
    newest = history[-1]
    assert str(kv_cli("stats", "--json").json["version"]) == newest
    assert cli("ls", lake, "--json").json[0]["version"] == newest
    assert kv_cli("scan", "--count", "--checkpoint", numbers["t1"]).out == "2\n"
    wrong = kv_cli("restore", "nothing", "--yes")
    assert wrong.code == exits.NOT_FOUND
    assert f"to {newest} can be read" in wrong.err
    assert kv_cli("get", "k2", "--checkpoint", "nothing").code == exits.NOT_FOUND
    said = kv_cli("restore", numbers["t0"], "--yes").out
    assert f"is {numbers['t0']} again" in said
    assert kv_cli("scan", "--count").out == "1\n"


def test_every_version_of_a_closed_database_has_what_was_acknowledged(kv_cli: Any, cli: Any, tmp_path: Path) -> None:
    """Going back to the version that stood after a write brings that write back, and no later one."""
    after = []
    for number in range(4):
        kv_cli("put", f"k{number}", str(number))
        after.append(str(kv_cli("stats", "--json").json["version"]))
    assert len(set(after)) == 4
    for number, version in enumerate(after):
        assert kv_cli("scan", "--count", "--checkpoint", version).out == f"{number + 1}\n"
        manifest = kv_cli("manifest", "-i", version).json
        assert kv_cli("restore", str(manifest["manifest_id"]), "--yes").code == exits.OK
        assert kv_cli("scan", "--count").out == f"{number + 1}\n"


def test_a_live_owner_is_not_disturbed(kv_cli: Any, orders: str) -> None:
    """Writing to an open database is refused, with its owner's name; admin commands and reads work."""
    with kv.open(orders) as database:
        assert kv_cli("stats", "--json").json["owner"].startswith(f"process {os.getpid()} on ")
        refused = kv_cli("put", "a", "mine", "--json")
        assert (refused.code, refused.error["kind"]) == (exits.CONFLICT, "owned")
        database.put(b"a", b"still mine")
        assert kv_cli("get", "a").out == "still mine\n"
        assert kv_cli("tag", "beside").code == exits.OK
        assert kv_cli("collect", "--grace", "0s").code == exits.OK
        assert database.get(b"a") == b"still mine"
    assert kv_cli("get", "a", "--checkpoint", "beside").out == "still mine\n"


@pytest.mark.parametrize(
    "command",
    [
        ("get", "k"),
        ("scan",),
        ("stats",),
        ("delete", "k"),
        ("tag",),
        ("tags",),
        ("restore", "x", "--yes"),
        ("drop", "--yes"),
        ("collect",),
        ("compact",),
        ("manifest",),
        ("manifests",),
    ],
    ids=lambda command: command[0],
)
def test_where_there_is_no_database(cli: Any, tmp_path: Path, command: tuple[str, ...]) -> None:
    """Nothing there, or something else: one sentence that says what is there, and nothing is made."""
    lakebed.open(str(tmp_path / "lake"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    for path, present in (("nothing", "empty or missing"), ("lake", "lake"), ("other", "notes.txt")):
        answer = cli("kv", "--path", tmp_path / path, *command)
        assert answer.code == exits.NOT_FOUND, answer.err
        assert answer.err.count("\n") == 1
        assert present in answer.err
    assert not (tmp_path / "nothing").exists()
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]


def test_a_missing_database_is_looked_for(cli: Any, tmp_path: Path) -> None:
    """The error says when the lake is missing too, when the name is a table, and which name is like it."""
    lake = str(tmp_path / "lake")
    assert f"There is no lake at {lake} either" in cli("kv", "get", lake, "serving", "k").err
    cli("kv", "put", lake, "serving", "k", "v")
    cli("table", "create", lake, "flights", "--column", "id BIGINT")
    assert "Did you mean serving?" in cli("kv", "get", lake, "servin", "k").err
    assert "flights is a table of this lake." in cli("kv", "get", lake, "flights", "k").err
    at_table = cli("kv", "--path", f"{lake}/default.db/flights", "get", "k")
    assert "it is a table. Read it as a table" in at_table.err


def test_errors_name_options_of_commands(cli: Any, tmp_path: Path) -> None:
    """What to do is said as a command, where there is one, before it is said in Python."""
    lake = str(tmp_path / "lake")
    cli("kv", "put", lake, "serving", "k", "v")
    cli("kv", "drop", lake, "serving", "--hard", "--yes")
    assert "`lakebed kv put --after-destroy` (in Python" in cli("kv", "put", lake, "serving", "k", "v").err
    script = f"import lakebed.kv; db = lakebed.kv.open({lake + '/other.kv'!r}); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        assert "with --take-over of `lakebed kv`" in cli("kv", "put", lake, "other", "k", "v").err
        owner.communicate(b"\n")


def test_writing_into_something_else_is_refused(cli: Any, tmp_path: Path) -> None:
    """``put`` makes a database in an empty folder only."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    answer = cli("kv", "--path", tmp_path / "other", "put", "k", "v")
    assert answer.code == exits.USAGE
    assert "notes.txt" in answer.err
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]


def test_the_database_has_to_be_given(cli: Any) -> None:
    """A command without lake and name says which is missing."""
    for command, missing in ((("get", "k"), "NAME"), (("collect",), "LAKE")):
        answer = cli("kv", *command)
        assert answer.code == exits.USAGE
        assert f"Missing argument {missing}." in answer.err


def test_a_lake_knows_its_databases(cli: Any, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ls, pins, history, why, clean and fsck of a lake hold for databases as for tables."""
    lake = tmp_path / "lake"
    (listed,) = cli("ls", lake, "--json").json
    assert (listed["kind"], listed["name"], listed["rows"], listed["pins"]) == ("database", "orders", None, 1)
    assert "orders" in cli("ls", lake).out
    pins = cli("pins", lake, "--json").json
    assert [(pin["store"], pin["name"]) for pin in pins] == [("orders", "first")]
    assert cli("history", lake, "database:orders", "--json").json
    file = next(path for path in (lake / "orders.kv" / "sst").iterdir())
    assert cli("why", lake, f"orders.kv/sst/{file.name}", "--json").json["sentence"]
    monkeypatch.chdir(tmp_path)
    assert cli("why", "lake", f"lake/orders.kv/sst/{file.name}", "--json").json["path"] == f"sst/{file.name}"
    assert cli("collect", lake, "--dry-run").code == exits.OK
    report = cli("fsck", lake, "--deep", "--json")
    assert (report.code, report.json["databases"], report.json["errors"]) == (exits.OK, 1, 0)
    assert cli("ls", lake / "orders.kv").code == exits.USAGE
    assert cli("history", lake, "order").code == exits.NOT_FOUND


def test_a_long_scan_comes_row_by_row(kv_cli: Any, tmp_path: Path) -> None:
    """A table of many rows is aligned by the first of them, and a longer key later on loses nothing."""
    with kv.open(tmp_path / "lake" / "orders.kv") as database:
        batch = kv.WriteBatch()
        for number in range(1200):
            batch.put(b"%05d" % number, b"[v%d]" % number)
        batch.put(b"99999 is longer", b"last")
        database.write(batch)
    lines = kv_cli("scan").out.splitlines()
    assert len(lines) == 2 + 1201
    assert lines[0] == "key     value"
    assert lines[2:4] == ["00000   [v0]", "00001   [v1]"]
    assert lines[-2:] == ["01199   [v1199]", "99999 is longer   last"]


def test_bytes_are_shown_harmlessly_and_exactly(kv_cli: Any) -> None:
    """Control characters move no cursor, and tsv can be read back."""
    assert kv_cli("put", "6b1b00", "0aff5c78666609", "--encoding", "hex").code == exits.OK
    assert kv_cli("scan").out.splitlines()[2].rstrip() == r"k\x1b\x00   \n\xff\xff\t"
    assert kv_cli("scan", "--format", "tsv").out == "k\\x1b\\x00\t\\n\\xff\\\\xff\\t\n"
    assert kv_cli("get", "6b1b00", "--encoding", "hex", "--raw", "--json").code == exits.USAGE


def test_a_value_goes_out_as_it_came_in(kv_cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``get --raw`` writes the bytes that ``put -`` read."""
    kv_cli("put", "00", "0aff00", "--encoding", "hex")
    out = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(out))
    assert kv_cli("get", "00", "--encoding", "hex", "--raw").code == exits.OK
    assert out.getvalue() == b"\x0a\xff\x00"


def test_an_argument_that_is_no_utf8(kv_cli: Any) -> None:
    """It is a key like any other, and printed with escapes, in errors too."""
    assert kv_cli("put", "\udcff", "v").out == "Wrote '\\xff' (1 B).\n"
    assert kv_cli("get", "\udcff").out == "v\n"
    assert kv_cli("get", "\udcfe").err == "lakebed: There is no key '\\xfe'.\n"


def test_json_never_shows_two_keys_as_one(kv_cli: Any) -> None:
    """Bytes that are not UTF-8 would read as the text that spells their escape: JSON is refused without an encoding."""
    assert kv_cli("put", "\\xff", "text").code == exits.OK
    assert kv_cli("put", "ff", "62", "--encoding", "hex").code == exits.OK
    assert kv_cli("put", "v", "ff", "--encoding", "hex").code == exits.USAGE  # 'v' is not hexadecimal
    assert kv_cli("put", "76", "ff", "--encoding", "hex").code == exits.OK
    for command in (
        ("scan", "--format", "jsonl"),
        ("scan", "--json"),
        ("get", "v", "--json"),
        ("get", "\udcff", "--json"),
        ("put", "\udcff", "v", "--json"),
        ("delete", "\udcff", "--json"),
    ):
        refused = kv_cli(*command)
        assert (refused.code, "xff' is not UTF-8: add --encoding hex" in refused.err) == (exits.USAGE, True), command
    rows = [json.loads(line) for line in kv_cli("scan", "--format", "jsonl", "--encoding", "hex").out.splitlines()]
    assert [row["key"] for row in rows] == ["5c786666", "76", "ff"]
    assert kv_cli("get", "\\xff", "--json").json == {"key": "\\xff", "value": "text"}


def test_a_lifetime_has_a_unit(kv_cli: Any, orders: str) -> None:
    """A bare number, which would be milliseconds, is refused with what was meant."""
    for command in (("tag", "-l", "7"), ("put", "k", "v", "--ttl", "7"), ("collect", "--grace", "7")):
        answer = kv_cli(*command)
        assert answer.code == exits.USAGE
        assert answer.err == "lakebed: '7' has no unit: write '7 d', '7h' or '7min'.\n"
    assert kv_cli("tag", "weekly", "-l", "7d").out.endswith(" and ends in 7 days.\n")


@pytest.mark.parametrize(("lifetime", "shown"), [("3650 d", "10 years"), ("365 d", "1 year"), ("36h", "1 day")])
def test_a_lifetime_reads_the_same_wherever_it_is_said(kv_cli: Any, orders: str, lifetime: str, shown: str) -> None:
    """tag, refresh-tag and tags say the same number of the same unit."""
    assert kv_cli("tag", "long", "-l", lifetime).out.endswith(f" and ends in {shown}.\n")
    assert kv_cli("refresh-tag", "long", "-l", lifetime).out == f"The checkpoint long ends in {shown}.\n"
    assert f"in {shown}" in kv_cli("tags").out


def test_a_soft_destruction_says_what_it_did(kv_cli: Any, orders: str) -> None:
    """One sentence, of what happened or would."""
    assert kv_cli("drop", "--dry-run").out.count("would be marked as destroyed") == 1
    assert kv_cli("get", "a").code == exits.OK
    done = kv_cli("drop", "--yes").out
    assert "is marked as destroyed" in done
    assert done.count("\n") == 1


def test_slips_are_answered_with_the_way_out(cli: Any, kv_cli: Any) -> None:
    """``--path`` behind the command, a value that looks like an option, an unknown choice."""
    assert cli("kv", "get", "a", "--path", "x.kv").code == exits.NOT_FOUND
    assert "behind --: lakebed kv put ... -- -5." in kv_cli("put", "k", "-5").err
    assert kv_cli("put", "k", "--", "-5").code == exits.OK
    assert "Value error" not in kv_cli("get", "k", "--encoding", "HEX").err


def test_a_lake_says_what_it_has_not(cli: Any, kv_cli: Any, orders: str, tmp_path: Path) -> None:
    """A name that is not a store, a database taken for a table, and what a version is made of, in words."""
    lake = tmp_path / "lake"
    assert "has no table, database, repository or tenant nope. It has orders." in cli("history", lake, "nope").err
    assert "has no database nope. It has orders." in cli("history", lake, "database:nope").err
    assert "has a database of this name: database:orders" in cli("table", "describe", lake, "orders").err
    kv_cli("put", "b", "1")
    kv_cli("tag")
    *_, newest = cli("history", lake, "orders", "--json").json
    assert re.fullmatch(r"1 file, [0-9,]+ bytes, (1 log object|[2-9] log objects)", newest["summary"])


def test_a_watch_tells_what_happened_and_no_more(kv_cli: Any, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection that deletes something is reported, idle ones are not; an interrupt ends it with its own code."""

    def interrupted(clock: SystemClock, seconds: float) -> None:
        if seconds == 60:
            raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", interrupted)
    first = kv_cli("collect", "--grace", "0s", "--watch", "--interval", "1min")
    assert first.code == exits.INTERRUPTED
    assert "deleted" in first.out
    assert kv_cli("collect", "--grace", "0s").out.startswith("orders.kv: nothing to delete.")
    again = kv_cli("collect", "--grace", "0s", "--watch", "--interval", "1min")
    assert (again.code, again.out) == (exits.INTERRUPTED, "")


def test_a_collection_goes_on_past_what_is_damaged_and_ends_with_the_last_database(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One damaged database does not stop the others; a destroyed one ends its watch, and the last one the command."""
    urls = {name: tmp_path / name for name in ("gone", "damaged", "orders", "never")}
    for name in ("gone", "damaged", "orders"):
        with kv.open(urls[name], durable=False) as database:
            database.put(b"k", b"v")
            database.flush(memtable=True)
    kv.admin.destroy(urls["gone"], soft=True)
    newest = max((urls["damaged"] / "manifest").iterdir())
    body = newest.read_bytes()
    newest.write_bytes(b"rubbish")
    naps: list[float] = []

    def nap(clock: SystemClock, seconds: float) -> None:
        naps.append(seconds)
        assert len(naps) < 3, "nothing is left to watch"
        if len(naps) == 2:
            newest.write_bytes(body)
        for name in {1: ("orders",), 2: ("damaged",)}[len(naps)]:
            kv.admin.destroy(urls[name], soft=True)
        # Files get the time of the last tick of the kernel's clock, a few ms ago; a grace ends by their time too.
        now_ns, probe = time.time_ns(), tmp_path / "probe"
        probe.touch()
        while probe.stat().st_mtime_ns < now_ns:
            probe.touch()

    def paths(*names: str) -> list[object]:
        return [word for name in names for word in ("--path", urls[name])]

    every = ("kv", "collect", "--grace", "0s", "--destroyed-grace", "0s")
    once = cli(*every, *paths("damaged", "orders", "never"))
    assert once.code == exits.FAULTY
    assert once.out.startswith("orders: ")
    assert [line.split(": ")[0] for line in once.err.splitlines()] == ["lakebed"] * 2
    assert str(urls["never"]) in once.err
    monkeypatch.setattr(SystemClock, "sleep", nap)
    watched = cli(*every, "--watch", "--interval", "1min", *paths("gone", "damaged", "orders"))
    assert (watched.code, naps) == (exits.OK, [60, 60])
    for name in ("gone", "orders", "damaged"):
        assert f"{name} was destroyed and only its tombstone is left: it is no longer watched." in watched.out
    assert watched.err.count("damaged was not collected: ") == 2
    mistyped = cli(*every, "--watch", *paths("never"))
    assert (mistyped.code, mistyped.err.count("\n")) == (exits.NOT_FOUND, 1)


def test_a_server_of_ones_own(cli: Any, s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Address and region come from ``--storage-option``, secrets from the environment, for every command."""
    secrets = {name: value for name, value in s3_server.options.items() if "key" in name}
    for name, value in secrets.items():
        monkeypatch.setenv(name.upper(), value)
    words = []
    for name, value in s3_server.options.items():
        if name not in secrets:
            words += ["--storage-option", f"{name}={value}"]
    lake = s3_server.url()
    assert cli(*words, "kv", "put", lake, "orders", "k", "v").code == exits.OK
    assert cli("kv", "get", lake, "orders", "k", *words).out == "v\n"
    assert [row["name"] for row in cli(*words, "ls", lake, "--json").json] == ["orders"]
    assert cli(*words, "fsck", lake).code == exits.OK
    assert cli("ls", lake, *words).code == exits.OK
    assert cli("--storage-option", "aws_region", "ls", lake).code == exits.USAGE
    output = cli("ls", lake, *words, "--storage-option", "aws_secret_access_key=GEHEIM")
    assert output.err.startswith(
        "lakebed: note: Every user of this machine can list --storage-option aws_secret_access"
    )
    assert "GEHEIM" not in output.err


def test_settings_of_a_store_in_the_environment(cli: Any, s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them may be one JSON object, which no list of processes shows; options win; an error quotes none."""
    lake = s3_server.url()
    monkeypatch.setenv("LAKEBED_STORAGE_OPTIONS", json.dumps({**s3_server.options, "aws_region": "GEHEIM"}))
    assert cli("kv", "put", lake, "orders", "k", "v", "--storage-option", "aws_region=us-east-1").err == ""
    assert cli("kv", "get", lake, "orders", "k").out == "v\n"
    for wrong in ("aws_secret_access_key=GEHEIM", '["GEHEIM"]', '{"aws_secret_access_key": "GEHEIM", "n": 1}'):
        monkeypatch.setenv("LAKEBED_STORAGE_OPTIONS", wrong)
        refused = cli("ls", lake)
        assert refused.code == exits.USAGE
        assert "LAKEBED_STORAGE_OPTIONS is not a JSON object of texts" in refused.err
        assert "GEHEIM" not in refused.err
