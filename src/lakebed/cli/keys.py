"""Commands of ``lakebed kv`` on single keys and ranges: get, put, delete, scan, stats; opening what ``--path`` names.

Invariants: reading commands write nothing to the database; keys and values are text on the command line, or hexadecimal
or base64 with ``--encoding``; what is no UTF-8 is shown with escapes. Those are exact in ``--format tsv``; elsewhere
only the other encodings are, and ``get --raw``.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lakebed.cli import args, say
from lakebed.cli.args import DryRun, Json, Yes
from lakebed.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from lakebed.kv.admin import DatabaseAdmin

__all__ = ["chosen", "database", "database_at", "no_path", "register"]


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


Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
Coding = Annotated[
    Encoding, typer.Option("--encoding", help="How keys and values are written here: utf8, hex or base64.")
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Also from an owner whose lease is live: its process is fenced.")
]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="Read what this checkpoint pins. Default: the latest version.")
]


def chosen(context: typer.Context) -> str | None:
    """What ``--path`` says."""
    url: str | None = context.obj
    return url


def no_path(command: str) -> InvalidRequest:
    """The error of a command that was not told its database."""
    return InvalidRequest(f"Which database? Say so: lakebed kv --path URL {command} ...", kind="usage")


def database(context: typer.Context) -> DatabaseAdmin:
    """The database that ``--path`` names, not opened."""
    url = chosen(context)
    if url is None:
        raise no_path(str(context.info_name))
    return database_at(url)


def database_at(url: str) -> DatabaseAdmin:
    """A database at a URL, not opened."""
    from lakebed.kv.admin import DatabaseAdmin
    from lakebed.kv.place import Place

    return DatabaseAdmin(Place.at(url, storage_options=args.storage_options()))


def register(app: typer.Typer) -> None:
    """Add the commands to the group."""
    for command in (get, put, delete, scan, stats):
        app.command(command.__name__)(command)


def get(
    context: typer.Context,
    key: Key,
    checkpoint: Checkpoint = None,
    encoding: Coding = Encoding.utf8,
    raw: Annotated[bool, typer.Option("--raw", help="Write the bytes of the value as they are, and no more.")] = False,
    json: Json = False,
) -> None:
    """Print the value of a key."""
    if raw and json:
        raise InvalidRequest("Give --raw or --json, not both.", kind="two_formats")
    with _reader(context, checkpoint) as reader:
        value = reader.get(_bytes(key, encoding))
    if value is None:
        raise NotFound(f"There is no key {_quoted(key)}.", kind="key_not_found", key=key)
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(value)
        return
    say.result(json, {"key": key, "value": _text(value, encoding)}, _text(value, encoding))


def put(
    context: typer.Context,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The value; - reads it from standard input.")],
    ttl: Annotated[str | None, typer.Option("--ttl", help="It ends after this time: '1h', '7days'.")] = None,
    encoding: Coding = Encoding.utf8,
    take_over: TakeOver = False,
    after_destroy: Annotated[
        bool, typer.Option("--after-destroy", help="Make a new database where one was destroyed.")
    ] = False,
    json: Json = False,
) -> None:
    """Write one key; makes the database when there is none."""
    from lakebed.kv.batch import lifetime_ms
    from lakebed.lsm.model import check_key, check_value

    body = sys.stdin.buffer.read() if value == "-" else _bytes(value, encoding)
    ttl_ms = args.duration_ms(ttl)
    found = None if ttl_ms is None else timedelta(milliseconds=ttl_ms)
    # Before anybody's database is opened, which changes it.
    named = check_key(_bytes(key, encoding))
    check_value(body)
    if found is not None:
        lifetime_ms(found)
    with database(context).open(options=_brief(), take_over=take_over, after_destroy=after_destroy) as opened:
        opened.put(named, body, ttl=found)
    say.result(json, {"key": key, "bytes": len(body)}, f"Wrote {_quoted(key)} ({say.size(len(body))}).")


def delete(
    context: typer.Context,
    key: Key,
    encoding: Coding = Encoding.utf8,
    take_over: TakeOver = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete one key; one that is not there is fine."""
    from lakebed.lsm.model import check_key

    found = check_key(_bytes(key, encoding))
    admin = database(context)
    if dry_run:
        with _reader(context, None) as reader:
            there = reader.get(found) is not None
        text = f"Would delete {_quoted(key)}." if there else f"There is no key {_quoted(key)}."
        say.result(json, {"key": key, "dry_run": True, "there": there}, text)
        return
    say.ask(f"Delete the key {_quoted(key)} of {admin.place.url}?", yes=yes, json=json)
    with admin.open(options=_brief(), take_over=take_over, create=False) as opened:
        opened.delete(found)
    say.result(json, {"key": key, "dry_run": False}, f"Deleted {_quoted(key)}.")


def scan(
    context: typer.Context,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only keys that begin so.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="Only keys from this one on.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="Only keys below this one.")] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="From the last key to the first.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Only say how many there are.")] = False,
    format: Annotated[Format, typer.Option("--format", help="text: a table; tsv; jsonl: one JSON object a line.")] = (
        Format.text
    ),
    checkpoint: Checkpoint = None,
    encoding: Coding = Encoding.utf8,
    json: Json = False,
) -> None:
    """List keys and values in the order of keys."""
    if prefix is not None and (start is not None or end is not None):
        raise InvalidRequest("Give --prefix, or --from and --to, not both.", kind="two_ranges")
    with _reader(context, checkpoint) as reader:
        if count and limit is None:
            number = _count(reader, prefix, start, end, encoding)
            say.result(json, {"count": number}, f"{number:,}")
            return
        if prefix is not None:
            rows = reader.scan_prefix(_bytes(prefix, encoding), reverse=reverse)
        else:
            rows = reader.scan(_bound(start, encoding), _bound(end, encoding), reverse=reverse)
        taken = islice(rows, limit)
        if count:
            number = sum(1 for _ in taken)
            say.result(json, {"count": number}, f"{number:,}")
        else:
            _print_rows(taken, format=format, encoding=encoding, json=json)


def _count(reader: Any, prefix: str | None, start: str | None, end: str | None, encoding: Encoding) -> int:
    if prefix is not None:
        batches = reader.scan_arrow(prefix=_bytes(prefix, encoding))
    else:
        batches = reader.scan_arrow(_bound(start, encoding), _bound(end, encoding))
    return sum(batch.num_rows for batch in batches)


def _print_rows(rows: Iterator[tuple[bytes, bytes]], *, format: Format, encoding: Encoding, json: bool) -> None:
    facts = ({"key": _text(key, encoding), "value": _text(value, encoding)} for key, value in rows)
    if json:
        say.document(list(facts))
    elif format is Format.jsonl:
        for row in facts:
            sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
    elif format is Format.tsv:
        for key, value in rows:
            sys.stdout.write(f"{_escaped(key, encoding, _FIELD)}\t{_escaped(value, encoding, _FIELD)}\n")
    else:
        cells = ((_escaped(key, encoding, _CELL), _escaped(value, encoding, _CELL)) for key, value in rows)
        say.grid(("key", "value"), cells, empty="No keys.")


def stats(context: typer.Context, json: Json = False) -> None:
    """Show what the newest version is made of: files, rows, log, checkpoints, owner."""
    from lakebed.kv.checkpoint import live_checkpoints
    from lakebed.kv.lease import read_lease, this_process
    from lakebed.kv.wal import WalLog

    admin = database(context)
    manifest = admin.show_manifest()
    owner = read_lease(admin.place, process=this_process()).owner
    files, log = manifest.file_set, WalLog(admin.place).entries(manifest.replay_after_wal_id)
    found = {
        "url": admin.place.url,
        "version": manifest.manifest_id,
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
        "checkpoints": len(live_checkpoints(manifest, admin.place.environment.clock.now_ms())),
        "ancestors": ", ".join(one.url for one in manifest.external_databases) or None,
        "merge_operator": manifest.merge_operator,
        "destroyed_ms": manifest.destroyed_at_ms,
    }
    if json:
        say.document(found)
        return
    rows = [(name.removesuffix("_ms").replace("_", " "), _shown(name, value)) for name, value in found.items()]
    say.grid(("what", "value"), rows, empty="")


def _shown(name: str, value: Any) -> str:
    if name.endswith("_ms"):
        return say.ago(value)
    if name.endswith("bytes"):
        return say.size(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else str(value)


# ---- inside


def _reader(context: typer.Context, checkpoint: str | None) -> Any:
    """A reader that writes nothing and looks once."""
    from lakebed.kv.options import ReaderOptions

    options = ReaderOptions(follow_latest=checkpoint is None, background=False)
    return database(context).reader(checkpoint, options=options)


def _brief() -> Any:
    """Options of a writer that lives for one command: it flushes at the end, and leaves compaction to others."""
    from lakebed.kv.options import DatabaseOptions

    return DatabaseOptions(background=False, compaction=False)


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


def _bound(text: str | None, encoding: Encoding) -> bytes | None:
    return None if text is None else _bytes(text, encoding)


def _text(body: bytes, encoding: Encoding) -> str:
    if encoding is Encoding.hex:
        return body.hex()
    if encoding is Encoding.base64:
        return base64.b64encode(body).decode()
    return body.decode("utf-8", "backslashreplace")


def _quoted(argument: str) -> str:
    return f"'{say.printable(argument)}'"


# Control characters would move a terminal's cursor, and end a line of a file. Bytes that are no UTF-8 are decoded to
# the code points from 0xDC80 on, which no text has.
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
