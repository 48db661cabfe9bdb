"""Commands of ``lakebed kv`` on single keys and ranges: get, put, delete, scan, stats.

Invariants: reading commands write nothing to the database. `byte_texts` defines how bytes are written and printed.
``get --raw`` writes bytes unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Final

from lakebed.cli import arguments, output, standard
from lakebed.cli.arguments import AfterDestroy, Limit, TakeOver
from lakebed.cli.byte_texts import Coding, Format, Key, bytes_of, check_json, print_rows, print_value, quote
from lakebed.cli.command import Deletion
from lakebed.cli.grammar import argument, option
from lakebed.cli.kv_context import SHORT_LIVED, DatabaseCommand
from lakebed.errors import InvalidRequest, LakebedError
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.batch import lifetime_ms
from lakebed.kv.checkpoint import live_checkpoints
from lakebed.kv.lease import check_not_owned, read_lease, this_process
from lakebed.kv.options import ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.kv.wal import WalLog
from lakebed.lsm.model import check_key, check_value

_LEVEL_0_COUNT_MAX: Final = 12
"""From this many files of level 0, a command that writes merges them itself. A compactor merges four, and more than 24
slow down writers (`DatabaseOptions`)."""

Checkpoint = Annotated[
    str | None,
    option("--checkpoint", help="Read this checkpoint, or the version of this number. Default: the latest version."),
]


class Get(DatabaseCommand, name="get"):
    """Print the value of a key."""

    key: Key
    checkpoint: Checkpoint = None
    encoding: Coding = "utf8"
    raw: Annotated[bool, option("--raw", help="Write the bytes of the value without any encoding.")] = False

    def run(self) -> None:
        if self.raw and self.json:
            raise InvalidRequest("Give --raw or --json, not both.", kind="two_formats")
        if self.json:
            check_json(bytes_of(self.key, self.encoding), self.encoding)
        with _reader(self.database(), self.checkpoint) as reader:
            value = reader.get(bytes_of(self.key, self.encoding))
        print_value(self.key, value, encoding=self.encoding, raw=self.raw, json=self.json)


class Put(DatabaseCommand, name="put"):
    """Write one key; create the database if it does not exist."""

    key: Key
    value: Annotated[str, argument("VALUE", help="The value; - reads it from standard input.")]
    ttl: Annotated[str | None, option("--ttl", help="The key expires after this time: '1h', '7days'.")] = None
    encoding: Coding = "utf8"
    take_over: TakeOver = False
    after_destroy: AfterDestroy = False

    def run(self) -> None:
        body = standard.read_input() if self.value == "-" else bytes_of(self.value, self.encoding)
        ttl = None if self.ttl is None else arguments.duration(self.ttl)
        # Before the database is opened, because opening changes it.
        key = check_key(bytes_of(self.key, self.encoding))
        check_value(body)
        if self.json:
            check_json(key, self.encoding)
        if ttl is not None:
            lifetime_ms(ttl)
        admin = self.database_to_create()
        with admin.open(options=SHORT_LIVED, take_over=self.take_over, after_destroy=self.after_destroy) as database:
            database.put(key, body, ttl=ttl)
            level_0_count = database.stats().l0_count
        _compact_if_alone(admin, level_0_count)
        self.result({"key": self.key, "bytes": len(body)}, f"Wrote {quote(self.key)} ({output.size(len(body))}).")


class Delete(Deletion, DatabaseCommand, name="delete"):
    """Delete one key. Deleting a missing key has no effect."""

    key: Key
    encoding: Coding = "utf8"
    take_over: TakeOver = False

    def run(self) -> None:
        key = check_key(bytes_of(self.key, self.encoding))
        if self.json:
            check_json(key, self.encoding)
        admin = self.database()
        if self.dry_run:
            with _reader(admin, None) as reader:
                check_not_owned(admin.location, take_over=self.take_over)
                exists = reader.get(key) is not None
            text = f"Would delete {quote(self.key)}." if exists else f"There is no key {quote(self.key)}."
            self.result({"key": self.key, "dry_run": True, "there": exists}, text)
            return
        self.ask(f"Delete the key {quote(self.key)} of {admin.location.url}?")
        with admin.open(options=SHORT_LIVED, take_over=self.take_over, create=False) as database:
            database.delete(key)
            level_0_count = database.stats().l0_count
        _compact_if_alone(admin, level_0_count)
        self.result({"key": self.key, "dry_run": False}, f"Deleted {quote(self.key)}.")


class Scan(DatabaseCommand, name="scan"):
    """List keys and values in the order of keys."""

    prefix: Annotated[str | None, option("--prefix", help="Only keys with this prefix.")] = None
    start: Annotated[str | None, option("--from", help="Only keys from this one on.")] = None
    end: Annotated[str | None, option("--to", help="Only keys below this one.")] = None
    reverse: Annotated[bool, option("--reverse", help="From the last key to the first.")] = False
    limit: Limit = None
    count: Annotated[bool, option("--count", help="Only count them.")] = False
    format: Annotated[Format, option("--format", help="text: a table; tsv; jsonl: one JSON object a line.")] = "text"
    checkpoint: Checkpoint = None
    encoding: Coding = "utf8"

    def run(self) -> None:
        if self.prefix is not None and (self.start is not None or self.end is not None):
            raise InvalidRequest("Give --prefix, or --from and --to, not both.", kind="two_ranges")
        with _reader(self.database(), self.checkpoint) as reader:
            if self.count and self.limit is None:
                keys = self._range()
                batches = reader.scan_arrow(keys.get("start"), keys.get("end"), prefix=keys.get("prefix"))
                number = sum(batch.num_rows for batch in batches)
            else:
                rows = self._scan(reader)
                if not self.count:
                    print_rows(rows, format=self.format, encoding=self.encoding, json=self.json)
                    return
                number = sum(1 for _ in rows)
        self.result({"count": number}, f"{number:,}")

    def _range(self) -> dict[str, bytes | None]:
        """Return the prefix, or the start and end, as bytes."""
        texts = {"prefix": self.prefix} if self.prefix is not None else {"start": self.start, "end": self.end}
        return {name: None if text is None else bytes_of(text, self.encoding) for name, text in texts.items()}

    def _scan(self, reader: DatabaseReader) -> Iterator[tuple[bytes, bytes]]:
        keys = self._range()
        if self.prefix is not None:
            return reader.scan_prefix(keys["prefix"] or b"", reverse=self.reverse, limit=self.limit)
        return reader.scan(keys["start"], keys["end"], reverse=self.reverse, limit=self.limit)


class Stats(DatabaseCommand, name="stats"):
    """Show what the newest version is made of: files, rows, log, checkpoints, owner."""

    def run(self) -> None:
        admin = self.database()
        manifest = admin.show_manifest()
        owner = read_lease(admin.location, process=this_process()).owner
        files, log = manifest.file_set, WalLog(admin.location).entries(manifest.replay_after_wal_id)
        facts = {
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
            "ancestors": ", ".join(ancestor.url for ancestor in manifest.external_databases) or None,
            "merge_operator": manifest.merge_operator,
            "destroyed_ms": manifest.destroyed_at_ms,
        }
        if self.json:
            output.document(facts)
            return
        output.facts(
            [(key.removesuffix("_ms").replace("_", " "), _format_fact(key, value)) for key, value in facts.items()]
        )


def _format_fact(name: str, value: Any) -> str:
    if name.endswith("_ms"):
        return output.ago(value)
    if name.endswith("bytes"):
        return output.size(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else str(value)


def _reader(admin: DatabaseAdmin, checkpoint: str | None) -> DatabaseReader:
    """Return a reader that writes nothing and reads the newest version once."""
    if checkpoint is not None and checkpoint.isdigit():
        return admin.at(checkpoint)
    return admin.reader(checkpoint, options=ReaderOptions(follow_latest=checkpoint is None, background=False))


def _compact_if_alone(admin: DatabaseAdmin, level_0_count: int) -> None:
    """Merge the files of many short-lived writers, if no compactor did."""
    if level_0_count >= _LEVEL_0_COUNT_MAX:
        with suppress(LakebedError):  # the key is written, and the next command tries again
            admin.compact()
