"""A writer's clock jumps ten years ahead and is set right again: expiry, tags and checks go on."""

from __future__ import annotations

import datetime as dt
import uuid

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.table import check_table
from lakebed.objects.open import open_store
from lakebed.runtime import Environment
from lakebed.table.collect.expire import expire_by_options
from lakebed.table.table import Table
from lakebed.testing import ManualClock

DAY_S = 86_400.0
JUMP_S = 3_653 * DAY_S


class JumpingClock(ManualClock):
    """A clock whose wall time may be ahead."""

    ahead_s = 0.0

    def now_ms(self) -> int:
        """What the wall clock says."""
        return super().now_ms() + round(self.ahead_s * 1000)


def new_table(clock: JumpingClock, **options: str) -> Table:
    """An empty append table whose store's clock is the writers' clock."""
    environment = Environment(clock=clock)
    store = open_store(f"memory://{uuid.uuid4()}", environment=environment)
    return Table.create(
        store, name="t", schema=pa.schema([("id", pa.int64())]), options=options, environment=environment
    )


def commit(table: Table, clock: JumpingClock, *numbers: int) -> None:
    """A commit a day."""
    for number in numbers:
        table.append(pa.table({"id": [number]}))
        clock.advance(DAY_S)


def jumped(**options: str) -> tuple[Table, JumpingClock]:
    """Three days of commits, one by a clock ten years ahead, and six days of commits after it was set right."""
    clock = JumpingClock()
    table = new_table(clock, **options)
    commit(table, clock, 1, 2, 3)
    clock.ahead_s = JUMP_S
    table.append(pa.table({"id": [4]}))
    clock.ahead_s = 0.0
    commit(table, clock, 5, 6, 7, 8, 9, 10)
    return table, clock


def found(table: Table) -> list[str]:
    """What the check says of a table."""
    report = CheckReport(table.url, deep=False)
    check_table(table, Findings(report, store="t"))
    return [finding.sentence for finding in report.findings]


def test_expiry_by_time_goes_on() -> None:
    """Snapshots with a time in the future are as old as their files and those after them: older ones expire."""
    table, clock = jumped()
    older_than_ms = clock.now_ms() - int(2.5 * DAY_S * 1000)
    table.expire(retain_min=1, older_than_ms=older_than_ms)
    assert table.context.snapshots.ids() == [9, 10]
    assert sorted(table.read()["id"].to_pylist()) == list(range(1, 11))


def test_expiry_by_order_looks_at_no_time() -> None:
    """By order, the newest retain_min snapshots stay, for any times they have; by_order with a time is refused."""
    table, clock = jumped()
    table.expire(retain_min=4, by_order=True)
    assert table.context.snapshots.ids() == [7, 8, 9, 10]
    with pytest.raises(InvalidRequest, match="by_order"):
        table.expire(by_order=True, older_than_ms=clock.now_ms())


def test_the_check_names_times_in_the_future_and_out_of_order() -> None:
    """The check names the snapshots and tags whose times lie in the future, and what to do about them."""
    table, clock = jumped()
    clock.ahead_s = JUMP_S
    table.create_tag("late", snapshot_id=2, lifetime_ms=1000)
    clock.ahead_s = 0.0
    sentences = " ".join(found(table))
    assert "snapshots 4 to 10" in sentences
    assert "by order" in sentences
    assert "tag late" in sentences
    clean = new_table(JumpingClock())
    clean.append(pa.table({"id": [1]}))
    assert not found(clean)


def test_a_tag_made_while_the_clock_was_ahead_ends() -> None:
    """The lifetime of a tag that was made in the future counts from when its file was written."""
    clock = JumpingClock()
    table = new_table(clock)
    commit(table, clock, 1)
    clock.ahead_s = JUMP_S
    table.create_tag("short", lifetime_ms=1000)
    clock.ahead_s = 0.0
    body = bytes(table.store.get("tag/tag-short"))
    table.store.put("tag/tag-short", body)  # as on a store with a clock of its own
    table.expire_tags()
    assert table.context.tags.names() == ["short"]
    clock.advance(2.0)
    table.expire_tags()
    assert table.context.tags.names() == []


def test_automatic_tags_go_on() -> None:
    """After a jump each finished day is tagged with its own last snapshot, also where missed days are completed."""
    options = {"tag.automatic-creation": "process-time", "tag.automatic-completion": "true"}
    clock = JumpingClock()
    table = new_table(clock, **options)
    commit(table, clock, 1, 2)
    table.trigger_automatic_tags()
    clock.ahead_s = JUMP_S
    table.append(pa.table({"id": [3]}))
    table.trigger_automatic_tags()
    clock.ahead_s = 0.0
    commit(table, clock, 4, 5, 6)
    table.trigger_automatic_tags()
    today = dt.datetime.fromtimestamp(clock.now_ms() / 1000, tz=dt.UTC).date()
    made = {tag.name: tag.snapshot.id for tag in table.tags()}
    assert made[str(today - dt.timedelta(days=1))] == 6
    assert made[str(today - dt.timedelta(days=2))] == 5


def test_a_process_whose_clock_is_ahead_ends_no_tag() -> None:
    """A lifetime is over when it is by the store's clock too; a clock that is right then ends it."""
    clock = JumpingClock()
    table = new_table(clock)
    commit(table, clock, 1)
    table.create_tag("week", lifetime_ms=int(7 * DAY_S * 1000))
    commit(table, clock, 2)
    ahead = Table.open(table.store, name="t", environment=Environment(clock=ManualClock(start_ms=clock.now_ms() * 2)))
    assert ahead.expire_tags().deleted_count == 0
    assert expire_by_options(ahead.context)[0].deleted_count == 0
    assert table.context.tags.names() == ["week"]
    assert table.read(tag="week").num_rows == 1
    clock.advance(6 * DAY_S)
    ahead.expire_tags()
    assert table.context.tags.names() == []


def test_a_process_whose_clock_is_ahead_expires_no_snapshot() -> None:
    """A snapshot is old when it is by the store's clock too, by the table's options and by a time that is given."""
    clock = JumpingClock()
    table = new_table(clock, **{"snapshot.time-retained": "7 d", "snapshot.num-retained.min": "1"})
    commit(table, clock, 1, 2, 3)
    table.create_tag("first", snapshot_id=1)
    ahead = Table.open(table.store, name="t", environment=Environment(clock=ManualClock(start_ms=clock.now_ms() * 2)))
    week_ms = int(7 * DAY_S * 1000)
    assert ahead.expire().hidden_count == 0
    assert ahead.expire(older_than_ms=ahead.context.now_ms() - week_ms).hidden_count == 0
    assert expire_by_options(ahead.context)[1].hidden_count == 0
    assert ahead.expire_tags(older_than_ms=ahead.context.now_ms() - week_ms).hidden_count == 0
    assert (table.context.snapshots.ids(), table.context.tags.names()) == ([1, 2, 3], ["first"])
    ahead.expire(retain_max=2)
    assert table.context.snapshots.ids() == [2, 3]
    clock.advance(6 * DAY_S)
    ahead.expire()
    assert table.context.snapshots.ids() == [3]
