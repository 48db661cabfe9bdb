"""Commands of ``lakebed kv`` on single keys and ranges: get, put, delete, scan, stats.

Invariants: reading commands write nothing to the database; keys and values are text on the command line, or hexadecimal
or base64 with ``--encoding``; other bytes are shown with escapes, which are exact in ``--format tsv`` only.
JSON has no escape for such bytes: it is refused without another encoding. ``get --raw`` writes bytes as they are.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, Final

import msgspec

from lakebed.cli import arguments, output
from lakebed.cli.arguments import AfterDestroy, Limit, TakeOver
from lakebed.cli.command import Deletion
from lakebed.cli.grammar import argument, option
from lakebed.cli.kv_context import SHORT_LIVED, DatabaseCommand
from lakebed.errors import InvalidRequest, LakebedError, NotFound
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.batch import lifetime_ms
from lakebed.kv.checkpoint import live_checkpoints
from lakebed.kv.lease import read_lease, this_process
from lakebed.kv.options import ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.kv.wal import WalLog
from lakebed.lsm.model import check_key, check_value

_LEVEL_0_COUNT_MAX: Final = 12
"""From this many files of level 0 on, a command that writes merges them itself. A compactor merges four, and above 24
writers are slowed down (`DatabaseOptions`)."""

_SHOWN_BYTES_MAX: Final = 40
"""Bytes of a key or value that an error shows."""


class Encoding(StrEnum):
    """How bytes are written on the command line."""

    utf8 = "utf8"
    hex = "hex"
    base64 = "base64"


class Format(StrEnum):
    """How a scan prints rows."""

    text = "text"
    tsv = "tsv"
    jsonl = "jsonl"


Key = Annotated[str, argument("KEY", help="The key.")]
Coding = Annotated[Encoding, option("--encoding", help="How keys and values are written here: utf8, hex or base64.")]
Checkpoint = Annotated[
    str | None,
    option("--checkpoint", help="Read this checkpoint, or the version of this number. Default: the latest version."),
]


class Get(DatabaseCommand, name="get"):
    """Print the value of a key."""

    key: Key
    checkpoint: Checkpoint = None
    encoding: Coding = Encoding.utf8
    raw: Annotated[bool, option("--raw", help="Write only the bytes of the value, as they are.")] = False

    def run(self) -> None:
        if self.raw and self.json:
            raise InvalidRequest("Give --raw or --json, not both.", kind="two_formats")
        if self.json:
            _check_json(_bytes(self.key, self.encoding), self.encoding)
        with _reader(self.database(), self.checkpoint) as reader:
            value = reader.get(_bytes(self.key, self.encoding))
        if value is None:
            raise NotFound(f"There is no key {_quoted(self.key)}.", kind="key_not_found", key=self.key)
        if self.raw:
            sys.stdout.flush()
            sys.stdout.buffer.write(value)
            return
        if self.json:
            _check_json(value, self.encoding)
        shown = _text(value, self.encoding)
        if self.json:
            output.document({"key": self.key, "value": shown})
        else:
            output.lines([shown])  # as it is, and not wrapped as a sentence


class Put(DatabaseCommand, name="put"):
    """Write one key; create the database if it does not exist."""

    key: Key
    value: Annotated[str, argument("VALUE", help="The value; - reads it from standard input.")]
    ttl: Annotated[str | None, option("--ttl", help="The key expires after this time: '1h', '7days'.")] = None
    encoding: Coding = Encoding.utf8
    take_over: TakeOver = False
    after_destroy: AfterDestroy = False

    def run(self) -> None:
        body = sys.stdin.buffer.read() if self.value == "-" else _bytes(self.value, self.encoding)
        ttl = None if self.ttl is None else arguments.duration(self.ttl)
        # Before the database is opened, which changes it.
        named = check_key(_bytes(self.key, self.encoding))
        check_value(body)
        if self.json:
            _check_json(named, self.encoding)
        if ttl is not None:
            lifetime_ms(ttl)
        admin = self.database()
        with admin.open(options=SHORT_LIVED, take_over=self.take_over, after_destroy=self.after_destroy) as opened:
            opened.put(named, body, ttl=ttl)
            level_0_count = opened.stats().l0_count
        _compact_if_alone(admin, level_0_count)
        self.result({"key": self.key, "bytes": len(body)}, f"Wrote {_quoted(self.key)} ({output.size(len(body))}).")


class Delete(Deletion, DatabaseCommand, name="delete"):
    """Delete one key. Deleting a missing key is a no-op."""

    key: Key
    encoding: Coding = Encoding.utf8
    take_over: TakeOver = False

    def run(self) -> None:
        found = check_key(_bytes(self.key, self.encoding))
        if self.json:
            _check_json(found, self.encoding)
        admin = self.database()
        if self.dry_run:
            with _reader(self.database(), None) as reader:
                there = reader.get(found) is not None
            text = f"Would delete {_quoted(self.key)}." if there else f"There is no key {_quoted(self.key)}."
            self.result({"key": self.key, "dry_run": True, "there": there}, text)
            return
        self.ask(f"Delete the key {_quoted(self.key)} of {admin.location.url}?")
        with admin.open(options=SHORT_LIVED, take_over=self.take_over, create=False) as opened:
            opened.delete(found)
            level_0_count = opened.stats().l0_count
        _compact_if_alone(admin, level_0_count)
        self.result({"key": self.key, "dry_run": False}, f"Deleted {_quoted(self.key)}.")


class Scan(DatabaseCommand, name="scan"):
    """List keys and values in the order of keys."""

    prefix: Annotated[str | None, option("--prefix", help="Only keys with this prefix.")] = None
    start: Annotated[str | None, option("--from", help="Only keys from this one on.")] = None
    end: Annotated[str | None, option("--to", help="Only keys below this one.")] = None
    reverse: Annotated[bool, option("--reverse", help="From the last key to the first.")] = False
    limit: Limit = None
    count: Annotated[bool, option("--count", help="Only count them.")] = False
    format: Annotated[Format, option("--format", help="text: a table; tsv; jsonl: one JSON object a line.")] = (
        Format.text
    )
    checkpoint: Checkpoint = None
    encoding: Coding = Encoding.utf8

    def run(self) -> None:
        if self.prefix is not None and (self.start is not None or self.end is not None):
            raise InvalidRequest("Give --prefix, or --from and --to, not both.", kind="two_ranges")
        with _reader(self.database(), self.checkpoint) as reader:
            if self.count and self.limit is None:
                keys = self._range()
                found = reader.scan_arrow(keys.get("start"), keys.get("end"), prefix=keys.get("prefix"))
                number = sum(batch.num_rows for batch in found)
            else:
                rows = islice(self._scanned(reader), self.limit)
                if not self.count:
                    _print_rows(rows, format=self.format, encoding=self.encoding, json=self.json)
                    return
                number = sum(1 for _ in rows)
        self.result({"count": number}, f"{number:,}")

    def _range(self) -> dict[str, bytes | None]:
        """The prefix, or the start and end, as bytes."""
        texts = {"prefix": self.prefix} if self.prefix is not None else {"start": self.start, "end": self.end}
        return {name: None if text is None else _bytes(text, self.encoding) for name, text in texts.items()}

    def _scanned(self, reader: DatabaseReader) -> Iterator[tuple[bytes, bytes]]:
        keys = self._range()
        if self.prefix is not None:
            return reader.scan_prefix(keys["prefix"] or b"", reverse=self.reverse)
        return reader.scan(keys["start"], keys["end"], reverse=self.reverse)


def _print_rows(rows: Iterator[tuple[bytes, bytes]], *, format: Format, encoding: Encoding, json: bool) -> None:
    facts = ({"key": _json_text(key, encoding), "value": _json_text(value, encoding)} for key, value in rows)
    if json:
        output.document(list(facts))
    elif format is Format.jsonl:
        for row in facts:
            sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
    elif format is Format.tsv:
        for key, value in rows:
            sys.stdout.write(f"{_escaped(key, encoding, _FIELD)}\t{_escaped(value, encoding, _FIELD)}\n")
    else:
        cells = ((_escaped(key, encoding, _CELL), _escaped(value, encoding, _CELL)) for key, value in rows)
        output.grid(("key", "value"), cells, sentences=("value",), empty="No keys.")


class Stats(DatabaseCommand, name="stats"):
    """Show what the newest version is made of: files, rows, log, checkpoints, owner."""

    def run(self) -> None:
        admin = self.database()
        manifest = admin.show_manifest()
        owner = read_lease(admin.location, process=this_process()).owner
        files, log = manifest.file_set, WalLog(admin.location).entries(manifest.replay_after_wal_id)
        found = {
            "url": admin.location.url,
            "version": manifest.content_since,
            "manifest": manifest.manifest_id,
            "changed_ms": manifest.created_at_ms,
            "rows_in_files": sum(file.row_count for file in files.files()),
            "tombstones_in_files": sum(file.tombstone_count for file in files.files()),
            "level_0_files": len(files.l0),
            "runs": len(files.runs),
            "files": len(files.files()),
            "file_bytes": files.size_bytes,
            "log_objects": sum(not entry.is_fence for entry in log),
            "log_bytes": sum(entry.size_bytes for entry in log if not entry.is_fence),
            "last_sequence_in_files": manifest.last_sequence,
            "owner": None if owner is None else f"process {owner.pid} on {owner.host}",
            "writer_epoch": manifest.writer_epoch,
            "compactor_epoch": manifest.compactor_epoch,
            "checkpoints": len(live_checkpoints(manifest, admin.location.environment.clock.now_ms())),
            "ancestors": ", ".join(one.url for one in manifest.external_databases) or None,
            "merge_operator": manifest.merge_operator,
            "destroyed_ms": manifest.destroyed_at_ms,
        }
        if self.json:
            output.document(found)
            return
        output.facts([(key.removesuffix("_ms").replace("_", " "), _shown(key, value)) for key, value in found.items()])


def _shown(name: str, value: Any) -> str:
    if name.endswith("_ms"):
        return output.ago(value)
    if name.endswith("bytes"):
        return output.size(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else str(value)


def _reader(admin: DatabaseAdmin, checkpoint: str | None) -> DatabaseReader:
    """A reader that writes nothing and reads the newest version once."""
    if checkpoint is not None and checkpoint.isdigit():
        return admin.at(checkpoint)
    return admin.reader(checkpoint, options=ReaderOptions(follow_latest=checkpoint is None, background=False))


def _compact_if_alone(admin: DatabaseAdmin, level_0_count: int) -> None:
    """Merge the files of many short-lived writers, if no compactor did."""
    if level_0_count >= _LEVEL_0_COUNT_MAX:
        with suppress(LakebedError):  # the key is written; the next command tries again
            admin.compact()


def _bytes(text: str, encoding: Encoding) -> bytes:
    try:
        if encoding is Encoding.hex:
            return bytes.fromhex(text)
        if encoding is Encoding.base64:
            return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidRequest(
            f"{_quoted(text)} is not written as {encoding.value}: write it so, or choose another --encoding.",
            kind="invalid_encoding",
        ) from error
    return text.encode("utf-8", "surrogateescape")


def _text(body: bytes, encoding: Encoding) -> str:
    if encoding is Encoding.hex:
        return body.hex()
    if encoding is Encoding.base64:
        return base64.b64encode(body).decode()
    return body.decode("utf-8", "backslashreplace")


def _check_json(body: bytes, encoding: Encoding) -> None:
    """Raise for bytes that JSON cannot hold: an escape would read as the text that spells it."""
    if encoding is not Encoding.utf8:
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        shown = body if len(body) <= _SHOWN_BYTES_MAX else body[:_SHOWN_BYTES_MAX] + b"..."
        raise InvalidRequest(
            f"JSON was asked for, and '{_escaped(shown, encoding, _FIELD)}' is not UTF-8: add --encoding hex or "
            "--encoding base64.",
            kind="not_utf8",
        ) from error


def _json_text(body: bytes, encoding: Encoding) -> str:
    _check_json(body, encoding)
    return _text(body, encoding)


def _quoted(argument: str) -> str:
    return f"'{output.printable(argument)}'"


# Control characters would move a terminal's cursor, or end a line of a file. Bytes that are not UTF-8 are decoded to
# the code points from 0xDC80 on, which no valid text has.
_CELL: dict[int, str] = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)},
    **{code: f"\\u{code:04x}" for code in range(0x80, 0xA0)},
    **{0xDC00 + code: f"\\x{code:02x}" for code in range(0x80, 0x100)},
    ord("\t"): "\\t",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
}


_FIELD: dict[int, str] = {**_CELL, ord("\\"): "\\\\"}


def _escaped(body: bytes, encoding: Encoding, escapes: dict[int, str]) -> str:
    if encoding is not Encoding.utf8:
        return _text(body, encoding)
    return body.decode("utf-8", "surrogateescape").translate(escapes)
