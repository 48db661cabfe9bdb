"""Scans that are interrupted: each row once, of one LSN, however long the scan takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest, Unavailable
from lakebed.fleet.client import Tenant
from lakebed.fleet.model import Policy
from lakebed.lsm.model import KEY_BYTES_MAX
from worlds.errors import raises
from worlds.fleet_in_process import FleetInProcess

PIECE_ROWS = 7


class CutFleet(FleetInProcess):
    """A fleet whose scans come in small pieces, and end early as often as `cuts` says.

    Attributes:
        cuts: after how many pieces each of the next scans ends.
        between: called after each piece.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cuts: list[int] = []
        self.between: list[Any] = []

    def port(self, url: str) -> Any:
        result = super().port(url)
        inner = result.scan

        def scan(*arguments: Any, **named: Any) -> Iterator[pa.RecordBatch]:
            pieces_max = self.cuts.pop(0) if self.cuts else None
            count = 0
            for batch in inner(*arguments, **named):
                for start in range(0, max(1, batch.num_rows), PIECE_ROWS):
                    if count == pieces_max:
                        raise Unavailable("cut off", kind="scan_interrupted")
                    yield batch.slice(start, PIECE_ROWS)
                    count += 1
                    if self.between:
                        self.between.pop(0)()

        result.scan = scan
        return result


@pytest.fixture
def fleet() -> CutFleet:
    """Two nodes and a control plane."""
    return CutFleet()


def tenant_with_rows(fleet: CutFleet, policy: Policy, *, count: int = 50) -> Tenant:
    """A tenant with rows that are committed."""
    tenant = fleet.tenant()
    tenant.create(policy=policy)
    tenant.main.write([(b"%03d" % number, b"old") for number in range(count)])
    tenant.main.checkpoint()
    return tenant


def test_a_scan_over_a_failover_has_each_row_once_as_of_one_lsn(fleet: CutFleet) -> None:
    """The node dies in the middle while every row is overwritten: the rest comes from another node, as it was."""
    main = tenant_with_rows(fleet, Policy(retain_rows=1000)).main
    fleet.cuts = [3, 2]

    def lose() -> None:
        main.write([(b"%03d" % number, b"new") for number in range(60)])
        fleet.kill(fleet.node_of("orders"))
        assert main.get(b"000") == b"new"  # the other node has read the log to its end

    fleet.between = [lambda: None, lose]
    assert list(main.scan()) == [(b"%03d" % number, b"old") for number in range(50)]
    assert list(main.scan()) == [(b"%03d" % number, b"new") for number in range(60)]


def test_a_scan_that_takes_longer_than_a_deadline_meets_interruptions_as_delays(fleet: CutFleet) -> None:
    """The deadline moves with each row: a reader that takes a minute a piece sees none of the interruptions."""
    main = tenant_with_rows(fleet, Policy(retain_rows=1000)).main
    fleet.cuts = [1] * 5
    result = []
    for row in main.scan():
        result.append(row)
        if len(result) % PIECE_ROWS == 0:
            fleet.wait(60)
    assert len(result) == 50
    assert not fleet.cuts


def test_a_scan_without_progress_ends_at_the_deadline(fleet: CutFleet) -> None:
    """A node that answers and then gives nothing is not asked without end."""
    main = tenant_with_rows(fleet, Policy(retain_rows=1000)).main
    fleet.cuts = [2, *[0] * 10_000]
    before_s = fleet.clock.monotonic_s()
    with raises(Unavailable, "tenant_unavailable", match="Cannot scan the timeline main"):
        list(main.scan())
    assert fleet.clock.monotonic_s() - before_s < 60


def test_a_state_that_is_not_kept_any_more_is_not_mixed_with_another(fleet: CutFleet) -> None:
    """Cut off after a commit that moved the cutoff, a scan fails with what to do; an LSN of the caller's is refused."""
    main = tenant_with_rows(fleet, Policy()).main
    fleet.cuts = [2]

    def commit() -> None:  # on another node: the first one keeps what it reads
        fleet.kill(fleet.node_of("orders"))
        main.put(b"000", b"new")
        main.checkpoint()

    fleet.between = [commit]
    with raises(Unavailable, "scan_interrupted", match=r"LSN 50, is not kept any more: scan again"):
        list(main.scan())
    assert len(list(main.scan())) == 50
    with raises(InvalidRequest, "below_cutoff"):
        main.scan_arrow(lsn=50)


def test_a_scan_that_is_cut_off_behind_the_longest_key_goes_on(fleet: CutFleet) -> None:
    """What is left begins behind a key that has as many bytes as a key can have."""
    tenant = fleet.tenant()
    tenant.create(policy=Policy(retain_rows=1000))
    keys = [*(b"a%d" % number for number in range(PIECE_ROWS - 1)), b"b" * KEY_BYTES_MAX, b"c", b"d"]
    tenant.main.write([(key, b"1") for key in keys])
    fleet.cuts = [1]
    assert [key for key, _ in tenant.main.scan()] == keys
    assert fleet.cuts == []
    assert [key for key, _ in tenant.main.scan(keys[-3] + b"\0")] == [b"c", b"d"]
