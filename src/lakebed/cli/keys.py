"""Commands of ``lakebed kv`` on single keys and ranges: get, put, delete, scan, stats; opening what ``--path`` names.

Invariants: reading commands write nothing to the database; keys and values are text on the command line, or hexadecimal
or base64 with ``--encoding``; what is not UTF-8 is shown with escapes, which are exact in ``--format tsv`` only. JSON
has no escape for such bytes: it is refused without another encoding. ``get --raw`` writes bytes as they are.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from lakebed.cli import args, say
from lakebed.cli.args import DryRun, Json, Yes
from lakebed.cli.grammar import Group, argument, option
from lakebed.errors import InvalidRequest, LakebedError, NotFound

if TYPE_CHECKING:
    from lakebed.kv.admin import DatabaseAdmin

__all__ = [
    "DatabaseName",
    "KvLake",
    "OtherPath",
    "database",
    "database_at",
    "flush_log",
    "hint_of_missing",
    "names_of",
    "new_spelling",
    "register",
    "url_of",
]

DATABASE_SUFFIX: Final = ".kv"

_LEVEL_0_COUNT_MAX: Final = 12
"""Files of level 0 from which on a command that writes merges them itself. A compactor merges four, and at more than 24
writers are held back (`DatabaseOptions`)."""

_SHOWN_BYTES_MAX: Final = 40
"""Of a key or value in an error."""


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


KvLake = Annotated[str | None, argument("LAKE", help=args.LAKE_HELP, is_lake=True)]
DatabaseName = Annotated[str | None, argument("NAME", help="A database of the lake: serving lies at LAKE/serving.kv.")]
Key = Annotated[str, argument("KEY", help="The key.")]
Coding = Annotated[Encoding, option("--encoding", help="How keys and values are written here: utf8, hex or base64.")]
TakeOver = Annotated[bool, option("--take-over", help="Also from an owner whose lease is live: its process is fenced.")]
Checkpoint = Annotated[
    str | None,
    option("--checkpoint", help="Read this checkpoint, or the version of this number. Default: the latest version."),
]


def new_spelling(url: str) -> str | None:
    """What to write in place of ``--path URL``; None for a database that lies in no lake."""
    lake, _, folder = url.rstrip("/").rpartition("/")
    if not folder.endswith(DATABASE_SUFFIX):
        return None
    return f"`--path {url}` is now `{lake or '.'} {folder.removesuffix(DATABASE_SUFFIX)}`, after the command."


OtherPath = Annotated[
    str | None,
    option(
        "--path",
        metavar="URL",
        help="A database that lies in no lake, in place of LAKE and NAME.",
        replaces=("lake", "name"),
        note=new_spelling,
    ),
]


def database(lake: str | None, name: str | None, path: str | None) -> DatabaseAdmin:
    """The database of a lake, or the one that ``--path`` names, not opened."""
    if path is not None:
        return database_at(path)
    assert lake is not None
    assert name is not None
    return database_at(url_of(lake, name))


def url_of(lake: str, name: str) -> str:
    """Where a database of a lake lies. Raises `InvalidRequest` for what is no database's name."""
    from lakebed.lake.names import database_folder

    return f"{lake.rstrip('/') or '/'}/{database_folder(name)}"


def hint_of_missing(lake: str, name: str) -> str:
    """What helps when a lake has no database `name`; empty when nothing is known to help. Cost: 1 to 3 LISTs."""
    from lakebed.lake import names

    try:
        near = names.nearest_names(name, names_of(lake))
        if near:
            return f"Did you mean {' or '.join(near)}?"
        kinds = [store.kind for store in args.open_lake(lake).stores() if store.name == name]
    except NotFound:
        return f"There is no lake at {lake} either: check where it is."
    except LakebedError:  # the error that is being explained says why
        return ""
    return f"{name} is a {kinds[0]} of this lake." if kinds else ""


def names_of(lake: str) -> list[str]:
    """Names of the databases of a lake, sorted. Raises `NotFound`. Cost: 1 LIST."""
    from lakebed.objects import open_store

    folders = open_store(lake, storage_options=args.storage_options(), create=False).list_with_delimiter("").folders
    return sorted(one.removesuffix(DATABASE_SUFFIX) for one in folders if one.endswith(DATABASE_SUFFIX))


def database_at(url: str) -> DatabaseAdmin:
    """A database at a URL, not opened."""
    from lakebed.kv.admin import DatabaseAdmin
    from lakebed.kv.database_location import DatabaseLocation

    return DatabaseAdmin(DatabaseLocation.at(url, storage_options=args.storage_options()))


def register(app: Group) -> None:
    """Add the commands to the group."""
    for command in (get, put, delete, scan, stats):
        app.command()(command)


def get(
    lake: KvLake,
    name: DatabaseName,
    key: Key,
    checkpoint: Checkpoint = None,
    encoding: Coding = Encoding.utf8,
    raw: Annotated[bool, option("--raw", help="Write the bytes of the value as they are, and no more.")] = False,
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """Print the value of a key."""
    if raw and json:
        raise InvalidRequest("Give --raw or --json, not both.", kind="two_formats")
    if json:
        _check_json(_bytes(key, encoding), encoding)
    with _reader(database(lake, name, path), checkpoint) as reader:
        value = reader.get(_bytes(key, encoding))
    if value is None:
        raise NotFound(f"There is no key {_quoted(key)}.", kind="key_not_found", key=key)
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(value)
        return
    if json:
        _check_json(value, encoding)
    shown = _text(value, encoding)
    if json:
        say.document({"key": key, "value": shown})
    else:
        say.lines([shown])  # as it is, and not wrapped as a sentence


def put(
    lake: KvLake,
    name: DatabaseName,
    key: Key,
    value: Annotated[str, argument("VALUE", help="The value; - reads it from standard input.")],
    ttl: Annotated[str | None, option("--ttl", help="It ends after this time: '1h', '7days'.")] = None,
    encoding: Coding = Encoding.utf8,
    take_over: TakeOver = False,
    after_destroy: Annotated[
        bool, option("--after-destroy", help="Make a new database where one was destroyed.")
    ] = False,
    path: OtherPath = None,
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
    if json:
        _check_json(named, encoding)
    if found is not None:
        lifetime_ms(found)
    admin = database(lake, name, path)
    with admin.open(options=_brief(), take_over=take_over, after_destroy=after_destroy) as opened:
        opened.put(named, body, ttl=found)
        level_0_count = opened.stats().l0_count
    _compact_if_alone(admin, level_0_count)
    say.result(json, {"key": key, "bytes": len(body)}, f"Wrote {_quoted(key)} ({say.size(len(body))}).")


def delete(
    lake: KvLake,
    name: DatabaseName,
    key: Key,
    encoding: Coding = Encoding.utf8,
    take_over: TakeOver = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """Delete one key; one that is not there is fine."""
    from lakebed.lsm.model import check_key

    found = check_key(_bytes(key, encoding))
    if json:
        _check_json(found, encoding)
    admin = database(lake, name, path)
    if dry_run:
        with _reader(database(lake, name, path), None) as reader:
            there = reader.get(found) is not None
        text = f"Would delete {_quoted(key)}." if there else f"There is no key {_quoted(key)}."
        say.result(json, {"key": key, "dry_run": True, "there": there}, text)
        return
    say.ask(f"Delete the key {_quoted(key)} of {admin.location.url}?", yes=yes, json=json)
    with admin.open(options=_brief(), take_over=take_over, create=False) as opened:
        opened.delete(found)
        level_0_count = opened.stats().l0_count
    _compact_if_alone(admin, level_0_count)
    say.result(json, {"key": key, "dry_run": False}, f"Deleted {_quoted(key)}.")


def scan(
    lake: KvLake,
    name: DatabaseName,
    prefix: Annotated[str | None, option("--prefix", help="Only keys that begin so.")] = None,
    start: Annotated[str | None, option("--from", help="Only keys from this one on.")] = None,
    end: Annotated[str | None, option("--to", help="Only keys below this one.")] = None,
    reverse: Annotated[bool, option("--reverse", help="From the last key to the first.")] = False,
    limit: Annotated[int | None, option("--limit", min=1, help="At most so many.")] = None,
    count: Annotated[bool, option("--count", help="Only say how many there are.")] = False,
    format: Annotated[Format, option("--format", help="text: a table; tsv; jsonl: one JSON object a line.")] = (
        Format.text
    ),
    checkpoint: Checkpoint = None,
    encoding: Coding = Encoding.utf8,
    path: OtherPath = None,
    json: Json = False,
) -> None:
    """List keys and values in the order of keys."""
    if prefix is not None and (start is not None or end is not None):
        raise InvalidRequest("Give --prefix, or --from and --to, not both.", kind="two_ranges")
    with _reader(database(lake, name, path), checkpoint) as reader:
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
    facts = ({"key": _json_text(key, encoding), "value": _json_text(value, encoding)} for key, value in rows)
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
        say.grid(("key", "value"), cells, sentences=("value",), empty="No keys.")


def stats(lake: KvLake, name: DatabaseName, path: OtherPath = None, json: Json = False) -> None:
    """Show what the newest version is made of: files, rows, log, checkpoints, owner."""
    from lakebed.kv.checkpoint import live_checkpoints
    from lakebed.kv.lease import read_lease, this_process
    from lakebed.kv.wal import WalLog

    admin = database(lake, name, path)
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
    if json:
        say.document(found)
        return
    say.facts([(name.removesuffix("_ms").replace("_", " "), _shown(name, value)) for name, value in found.items()])


def _shown(name: str, value: Any) -> str:
    if name.endswith("_ms"):
        return say.ago(value)
    if name.endswith("bytes"):
        return say.size(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else str(value)


# ---- inside


def _reader(admin: DatabaseAdmin, checkpoint: str | None) -> Any:
    """A reader that writes nothing and looks once."""
    from lakebed.kv.options import ReaderOptions

    if checkpoint is not None and checkpoint.isdigit():
        return admin.at(checkpoint)
    return admin.reader(checkpoint, options=ReaderOptions(follow_latest=checkpoint is None, background=False))


def _compact_if_alone(admin: DatabaseAdmin, level_0_count: int) -> None:
    """Merge the files of many short-lived writers, where no compactor has done so long before."""
    if level_0_count >= _LEVEL_0_COUNT_MAX:
        with suppress(LakebedError):  # the key is written; the next command tries again
            admin.compact()


def flush_log(admin: DatabaseAdmin) -> None:
    """Put the rows of the log into files, unless a writer owns the database: it does so itself."""
    from lakebed.kv.wal import WalLog

    entries = WalLog(admin.location).entries(admin.show_manifest().replay_after_wal_id)
    if all(entry.is_fence for entry in entries):
        return
    try:
        with admin.open(options=_brief(), create=False) as opened:
            opened.flush(memtable=True)
    except LakebedError as error:
        if error.kind not in ("owned", "unknown_operator"):
            raise


def _brief() -> Any:
    """Options of a writer that lives for one command: it leaves compaction to others."""
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
