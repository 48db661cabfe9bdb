"""The benchmark of databases runs, and its YCSB workloads are what their authors published."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def ycsb(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the workloads, which lies beside the benchmark."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("ycsb")


def test_every_group_runs_at_a_small_scale(tmp_path: Path) -> None:
    """Each group that needs no peer prints its rows, and nothing is written beside the results that are committed."""
    results = BENCH / "results" / "kv.json"
    before = results.read_bytes()
    groups = "handed,many,threads,compact,s3,large,native,ycsb"
    done = subprocess.run(
        [
            sys.executable,
            *(str(BENCH / "kv.py"), "--alone", "--dry", "--scale", "0.001", "--samples", "1", "--only", groups),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    printed = {line.split()[0].rstrip(":") for line in done.stdout.splitlines()}
    assert printed >= {
        *(
            "fillrandom_handed",
            "multigetrun_uncached",
            "multimissing_cached",
            "threads_cached",
            "compact",
            "s3_cold_gets_100",
        ),
        *("large_fill", "large_readrandom", "large_multiget", "ycsb_a", "ycsb_e", "ycsb_geometric_mean"),
    }
    assert printed & {"native", "native_readrandom"}
    assert results.read_bytes() == before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("workload", "shares"),
    [
        ("a", {"read": 0.5, "update": 0.5}),
        ("b", {"read": 0.95, "update": 0.05}),
        ("c", {"read": 1}),
        ("d", {"read": 0.95, "insert": 0.05}),
        ("e", {"scan": 0.95, "insert": 0.05}),
        ("f", {"read": 0.5, "modify": 0.5}),
    ],
)
def test_a_workload_is_what_was_published(ycsb: ModuleType, workload: str, shares: dict[str, float]) -> None:
    """Shares of operations, records of ten fields of 100 bytes, scans of 1 to 100, inserts behind what is there."""
    operations, record_count = ycsb.operations_of(workload, record_count=1000, count=4000, seed=3)
    counted = Counter(verb for verb, _, _ in operations)
    assert counted.keys() == shares.keys()
    assert all(abs(counted[verb] / 4000 - share) < 0.02 for verb, share in shares.items())
    lengths = {verb: {len(value) for name, _, value in operations if name == verb} for verb in shares}
    assert all(taken == {1000} for verb, taken in lengths.items() if verb != "scan")
    if "scan" in shares:
        assert (min(lengths["scan"]), max(lengths["scan"])) == (1, 100)
    loaded = set(ycsb.keys_of_records(ycsb.np.arange(1000)))
    inserted = [key for verb, key, _ in operations if verb == "insert"]
    assert inserted == ycsb.keys_of_records(ycsb.np.arange(1000, 1000 + len(inserted)))
    assert record_count == 1000 + len(inserted)
    assert {key for verb, key, _ in operations if verb != "insert"} <= loaded


def test_popular_records_are_as_popular_as_published(ycsb: ModuleType) -> None:
    """Rank r is drawn in proportion to 1 / (r + 1) ** 0.99; latest counts from the newest, scrambled spreads them."""
    count, records = 200_000, 500
    total = sum((rank + 1) ** -0.99 for rank in range(records))
    drawn = Counter(ycsb.draw_zipfian(ycsb.np.random.default_rng(1), records, count).tolist())
    assert max(drawn) < records
    for rank in (0, 1, 9, 99):
        expected = (rank + 1) ** -0.99 / total
        assert abs(drawn[rank] / count - expected) < 0.05 * expected + 0.001
    latest = Counter(ycsb.draw_records("d", ycsb.np.random.default_rng(1), records, count).tolist())
    assert latest == {records - 1 - rank: times for rank, times in drawn.items()}
    spread = Counter(ycsb.draw_records("a", ycsb.np.random.default_rng(1), records, count).tolist())
    assert spread.most_common(1)[0][1] >= drawn[0]
    assert {record for record, _ in spread.most_common(5)} != set(range(5))
