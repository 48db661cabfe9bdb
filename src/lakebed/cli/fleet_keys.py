"""Commands of ``lakebed fleet`` on the rows of a tenant: put, get, delete, scan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated

from lakebed.cli import output, standard
from lakebed.cli.arguments import Limit
from lakebed.cli.byte_texts import Coding, Format, Key, bytes_of, check_json, print_rows, print_value, quote
from lakebed.cli.command import Deletion
from lakebed.cli.fleet_context import TenantCommand, TimelineOption
from lakebed.cli.grammar import argument, option
from lakebed.errors import InvalidRequest, Unavailable
from lakebed.fleet.model import MAIN
from lakebed.lsm.model import check_key, check_value

if TYPE_CHECKING:
    from lakebed.fleet.timeline import Timeline, TimelineView

Expected = Annotated[
    int | None, option("--expected", min=0, help="Only if this is the timeline's last LSN; else exit with 4.")
]


class Put(TenantCommand, name="put"):
    """Write one key, and print the LSN of the row."""

    key: Key
    value: Annotated[str, argument("VALUE", help="The value; - reads it from standard input.")]
    timeline: TimelineOption = MAIN
    expected: Expected = None
    encoding: Coding = "utf8"

    def run(self) -> None:
        body = standard.read_input() if self.value == "-" else bytes_of(self.value, self.encoding)
        key = check_key(bytes_of(self.key, self.encoding))
        check_value(body)
        if self.json:
            check_json(key, self.encoding)
        with self.open_tenant() as tenant:
            lsn = tenant.timeline(self.timeline).put(key, body, expected=self.expected)
        text = f"Wrote {quote(self.key)} ({output.size(len(body))}) at LSN {lsn}."
        self.result({"key": self.key, "bytes": len(body), "lsn": lsn}, text)


class Delete(Deletion, TenantCommand, name="delete"):
    """Delete one key. Deleting a missing key writes a row too."""

    key: Key
    timeline: TimelineOption = MAIN
    expected: Expected = None
    encoding: Coding = "utf8"

    def run(self) -> None:
        key = check_key(bytes_of(self.key, self.encoding))
        if self.json:
            check_json(key, self.encoding)
        with self.open_tenant() as tenant:
            timeline = tenant.timeline(self.timeline)
            if self.dry_run:
                if timeline.status().is_read_only:
                    raise InvalidRequest(
                        f"{self.timeline} is a pin, and takes no writes: branch it, and write to the branch.",
                        kind="read_only",
                    )
                timeline.catch_up()
                exists = timeline.get(key) is not None
                text = f"Would delete {quote(self.key)}." if exists else f"There is no key {quote(self.key)}."
                self.result({"key": self.key, "dry_run": True, "there": exists}, text)
                return
            self.ask(f"Delete the key {quote(self.key)} of the tenant {self.tenant}?")
            lsn = timeline.delete(key, expected=self.expected)
        self.result({"key": self.key, "dry_run": False, "lsn": lsn}, f"Deleted {quote(self.key)} at LSN {lsn}.")


class Reading(TenantCommand):
    """A command that reads a state of a tenant."""

    timeline: TimelineOption = MAIN
    lsn: Annotated[int | None, option("--lsn", min=0, help="As of this LSN. Default: the newest state.")] = None
    version: Annotated[
        str | None, option("--version", help="As of this version: its number, TIMELINE@LSN, or the name of a pin.")
    ] = None

    @contextmanager
    def state(self) -> Iterator[Timeline | TimelineView]:
        """Open the timeline, or its state at an LSN."""
        if self.version is not None and (self.lsn is not None or self.timeline != MAIN):
            raise InvalidRequest("Give --version, or --timeline and --lsn, not both.", kind="two_versions")
        with self.open_tenant() as tenant:
            if self.version is not None:
                view = tenant.at(self.version)
                self._check_written(tenant.timeline(view.name), view.lsn)
                yield view
                return
            timeline = tenant.timeline(self.timeline)
            if self.lsn is None:
                timeline.catch_up()
                yield timeline
            else:
                self._check_written(timeline, self.lsn)
                yield timeline.at(self.lsn)

    def _check_written(self, timeline: Timeline, lsn: int) -> None:
        """Refuse an LSN that no row has. The library would wait for the row, which another client may be writing."""
        if lsn <= timeline.status().lsn:
            return
        last = timeline.lsn()
        if lsn > last:
            raise Unavailable(
                f"Cannot read the tenant {self.tenant} at LSN {lsn}: the last one that was written is {last}. Read at "
                "an older LSN.",
                kind="lsn_not_reached",
                lsn=last,
            )


class Get(Reading, name="get"):
    """Print the value of a key."""

    key: Key
    encoding: Coding = "utf8"
    raw: Annotated[bool, option("--raw", help="Write the bytes of the value without any encoding.")] = False

    def run(self) -> None:
        if self.raw and self.json:
            raise InvalidRequest("Give --raw or --json, not both.", kind="two_formats")
        key = check_key(bytes_of(self.key, self.encoding))
        if self.json:
            check_json(key, self.encoding)
        with self.state() as state:
            value = state.get(key)
        print_value(self.key, value, encoding=self.encoding, raw=self.raw, json=self.json)


class Scan(Reading, name="scan"):
    """List keys and values in the order of keys."""

    prefix: Annotated[str | None, option("--prefix", help="Only keys with this prefix.")] = None
    start: Annotated[str | None, option("--from", help="Only keys from this one on.")] = None
    end: Annotated[str | None, option("--to", help="Only keys below this one.")] = None
    limit: Limit = None
    count: Annotated[bool, option("--count", help="Only count them.")] = False
    format: Annotated[Format, option("--format", help="text: a table; tsv; jsonl: one JSON object a line.")] = "text"
    encoding: Coding = "utf8"

    def run(self) -> None:
        if self.prefix is not None and (self.start is not None or self.end is not None):
            raise InvalidRequest("Give --prefix, or --from and --to, not both.", kind="two_ranges")
        start, end, prefix = (
            None if text is None else bytes_of(text, self.encoding) for text in (self.start, self.end, self.prefix)
        )
        with self.state() as state:
            if self.count:
                number = sum(batch.num_rows for batch in state.scan_arrow(start, end, prefix=prefix))
                number = number if self.limit is None else min(number, self.limit)
                self.result({"count": number}, f"{number:,}")
                return
            rows = islice(state.scan(start, end, prefix=prefix), self.limit)
            print_rows(rows, format=self.format, encoding=self.encoding, json=self.json)
