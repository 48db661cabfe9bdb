"""Write docs/performance.md and its plots from the results of the benchmarks: one row a measurement.

    python bench/plots.py

The benchmarks call it after each run; a test compares the page with the results. A plot has a dot for each ratio to
other software, on a logarithmic axis: to the right of the line lakebed is better. It is SVG written here, since a
library of plots would be a dependency of 40 MB for lines and dots.
"""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "results"
PAGE: Final = ROOT / "docs" / "performance.md"
PLOTS: Final = ROOT / "docs" / "assets"

INTRO: Final = """# Performance

Each row is one measurement. The table includes the measurements in which lakebed is slow.

- A figure is the median of runs. The runs of lakebed and of the others alternate on one machine, so that a busy moment
  affects all of them.
- *Ratio* is above 1 where lakebed is better, and **bold** where other software is better. If all were measured equally
  often, it is the median of the rounds' ratios, which can differ from the ratio of the medians.
- A peer such as `none-sealed` is lakebed itself in another state, or the bare write below it.
- The figures are of one small machine ({machine}). `make bench SCALE=1` measures them on your machine and writes this
  page again.

Samples, requests, bytes and targets are in [bench/results](../bench/results), [as tables](../bench/RESULTS.md).
"""

SUITES: Final = {
    "table": (
        "Tables",
        "A million rows in Python, against the format's own client (pypaimon), its native (Rust) path, and delta-rs.",
    ),
    "spark": (
        "Spark SQL",
        "Four million rows through the catalog, ten million for MERGE, against Spark's own Parquet, Delta Lake, and "
        "the format's own connector in Java.",
    ),
    "kv": (
        "Databases",
        "A million keys of 16 bytes with values of 100 bytes, against RocksDB and SlateDB. Each is driven from Python, "
        "syncs no log and has equal bytes of cache. RocksDB hands the log record of each put to the operating system "
        "before the put returns. lakebed gathers the records of puts that do not wait, for a tenth of a second at "
        "most, except in rows that say 'handed over'. Times are for one key, one row, or the whole.",
    ),
    "repo": (
        "Repositories",
        "A base of a million objects in one process, in a local folder, with everything durable.",
    ),
    "lakefs": (
        "The server and lakeFS",
        "Against lakeFS's own server, both on local storage. 16 connections that stay open send the requests. In "
        "lakebed, uploads wait for the disk. In lakeFS, records wait for the disk and objects never do. A time is for "
        "the whole load: with 16 clients, one request takes 16 times as long.",
    ),
    "fleet": ("Tenants", "A log, a control plane and nodes as processes of one machine."),
    "catalog": (
        "Catalogs",
        "Clients of other engines through the server. The server is a process of its own and syncs what it writes. A "
        "client's commit to a folder syncs nothing.",
    ),
}
"""By the name of the file with results: heading, and what was measured. A suite that was never run is left out."""

REASONS: Final = {
    "kv": "Where RocksDB is faster, the cost of the interpreter is the reason. A get that is not cached takes about "
    "twenty steps of Python around a microsecond of checksum and decompression; in RocksDB it is a single call. For "
    "absent keys that are asked one by one, the filter works a few nanoseconds, and the steps around it determine the "
    "time. Gets by threads have pieces of native work that are shorter than handing over the interpreter's lock, so "
    "threads take turns. Short scans ask each sorted file and the memtable in Python, once or twice for each scan. All "
    "processors decompress an Arrow file, but only one decompresses for a scan. "
    "[The design](design/0055-pages-of-sorted-files.md#measured) has the parts and what was tried.",
    "catalog": "A commit of pypaimon through the server is two requests: the newest snapshot, and the commit. For each "
    "request the client makes a catalog, a session and a connection, which takes 1.6 ms of its processor time. None of "
    "this depends on the server's answer: the client asks for the snapshot in every try, the reply to a commit is a "
    "single boolean, and the client keeps no reply. So a server that answered at once would leave 6.8 ms, which is "
    "more than 1.3 times the commit on files and one request on an open connection. From the next measurement on, "
    "the target counts both requests as the client makes them. "
    "[The design](design/0057-paimon-rest-catalog.md#cost) has the server's part.",
}
"""Below the rows of a suite: why lakebed is slower in some."""

_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
_MACHINE: Final = "{cores} cores, {architecture}, {system}, Python {python}"

LABELS: Final = {
    "paimon_commit": "pypaimon commits 100 rows through the server, which syncs; on files nothing is synced",
    "paimon_commit_cpu": "processor time of the server for it",
    "paimon_commit_client_cpu": "processor time of the client for it",
    "paimon_commit_large": "the same on a table of 500 unmerged commits",
    "paimon_commit_unsynced": "pypaimon commits 100 rows through a server that does not sync either",
    "paimon_commit_large_unsynced": "the same on a table of 500 unmerged commits",
    "iceberg_first": "a table of 10,000 files and 1,000 versions is loaded by an Iceberg client for the first time",
    "iceberg_commit": "the same after one more commit: work of the server",
    "iceberg_again": "the same, unchanged",
    "iceberg_restart": "the same by a server that has just started",
    "iceberg_load_http": "the same, unchanged, through HTTP",
    "iceberg_read": "pyiceberg reads 10 million rows",
    "paimon_request_anew": "the same by a new catalog, session and connection, as a commit makes each of its two",
    "paimon_request_anew_unsynced": "the same by a new catalog, session and connection",
    "paimon_request_unsynced": "one small request of pypaimon to that server",
    "paimon_request": "one small request of pypaimon",
    "paimon_race": "16 pypaimon clients race: requests to commit for each commit",
    "paimon_config": "config of the catalog, 16 connections",
    "paimon_config_cpu": "processor time of the server for one of these requests",
    "append_write": "append a million rows",
    "append_read": "read a million rows",
    "pk_write": "write a million keys",
    "upsert": "upsert 100,000 of the keys",
    "merge_read": "read, merging the upserts",
    "commit": "commit ten rows, durable",
    "tag_create": "create a tag",
    "tag_delete": "delete a tag",
    "expire_tags_0": "expire snapshots: bytes read, without tags",
    "expire_tags_10": "the same with 10 tags",
    "expire_tags_1000": "the same with 1,000 tags",
    "spark_scan": "scan through Spark's data frames",
    "spark_write": "write through Spark's data frames",
    "merge_memory": "memory to read and merge a bucket of 5 GB",
    "compact_memory": "memory to compact a bucket of 5 GB",
    "lakefs/stat": "get the metadata of an object",
    "lakefs/list": "list a page of 1,000 objects",
    "lakefs/commit_10k": "commit 10,000 staged objects",
    "upload_4k": "upload an object of 4 KiB",
    "upload_4k_unsynced": "the same without waiting for the disk",
    "first_page_deleted_100k": "first page of a branch in which all objects but one are deleted",
    "s3_get_4k": "get an object of 4 KiB through S3",
    "s3_put_4k": "put an object of 4 KiB through S3",
    "s3_get_100mb": "get an object of 100 MB through S3",
    "peak_memory": "most memory of the server",
    "java_floor": "a statement on an empty file",
    "java_append": "append",
    "java_scan_filter": "scan with a filter",
    "java_merge_read": "read that merges",
    "java_merge_read_key": "read that merges, filter of the key",
    "java_merge_read_other": "read that merges, other filter",
    "java_merge_read_absent": "read that merges, key that is absent",
    "merge_1pct": "MERGE of 1 %, replacing files",
    "upsert_1pct": "upsert of 1 % by key",
    "upsert_1pct_read_compact": "upsert of 1 %, full read, compaction",
    "upsert_1pct_compact_read_marked": "the same with deletion vectors",
    "point_lookup": "look up a row by its id, among 4 files",
    "point_lookup_64_files": "look up a row by its id, among 64 files",
    "orphans_1m": "find orphans among a million files",
    "stream": "stream of six batches",
    "fillseq": "put, ascending keys",
    "fillrandom": "put, random keys",
    "fillbatch": "put, batches of a thousand",
    "scan_rows": "scan rows as Python objects",
    "scan_arrow": "scan all as Arrow, in the cache",
    "scan_arrow_uncached": "scan all as Arrow, not in the cache",
    "stage": "stage one entry",
    "stage_many": "stage 200,000 entries in one call",
    "list": "list a million objects",
    "list_after_compaction": "list a branch of deletions after staging compaction",
    "commit_10k": "commit 10,000 staged entries",
    "commit_1m": "commit a million staged entries",
    "commit_100_scattered": "commit 100 entries scattered over the base",
    "diff_0.1pct": "difference of 0.1 %",
    "merge_0.1pct": "merge of 0.1 %",
    "plan_100k_cold": "plan 100,000 files, at first",
    "plan_100k_warm": "plan 100,000 files, again",
    "plan_100k_selective": "plan 100,000 files, one partition",
    "plan_100k_keyed_cold": "plan 100,000 files of a table with keys, at first",
    "plan_100k_keyed_warm": "plan 100,000 files of a table with keys, again",
    "plan_1200_commits_cold": "plan after 1,200 small commits, at first",
    "plan_1200_commits_warm": "plan after 1,200 small commits, again",
    "tags_list_1000_cold": "list 1,000 tags, at first",
    "tags_list_1000_warm": "list 1,000 tags, again",
    "tag_delete_10": "delete a tag among 10",
    "tag_delete_1000": "delete a tag among 1,000",
    "tag_delete_expired_10": "delete a tag of an expired snapshot, among 10",
    "tag_delete_expired_1000": "delete a tag of an expired snapshot, among 1,000",
    "write_partitioned": "write into partitions",
    "write_buckets": "write into buckets",
    "write_memory": "memory of a write",
    "bridge_start": "start the bridge to Python, once a JVM",
    "analysis": "analyse a statement",
    "checkpoint_1m_rows": "checkpoint with a million rows",
    "checkpoint_10m_rows": "checkpoint with ten million rows",
    "clone_1m_rows": "clone with a million rows",
    "clone_10m_rows": "clone with ten million rows",
    "kv/compact_memory": "memory to compact 2 GB",
    "scan_memory": "memory to scan 2 GB",
    "cache_bytes": "bytes of the cache",
    "s3_durable_put": "durable put, requests of 20 ms each",
    "s3_cold_get": "first get of a key, requests of 20 ms each",
    "s3_cold_gets_100": "100 gets of random keys, requests of 20 ms each",
    "s3_cold_get_many_100": "get of 100 random keys at once, requests of 20 ms each",
    "fillrandom_handed": "put, its log record handed over",
    "multigetrun_memtable": "get 100 neighbours at once, in memory",
    "multigetrun_cached": "get 100 neighbours at once, cached",
    "multigetrun_uncached": "get 100 neighbours at once, uncached",
    "multimissing_memtable": "get 100 absent keys at once, in memory",
    "multimissing_cached": "get 100 absent keys at once, cached",
    "multimissing_uncached": "get 100 absent keys at once, uncached",
    "threads_memtable": "get by four threads, in memory",
    "threads_cached": "get by four threads, cached",
    "threads_uncached": "get by four threads, uncached",
    "large_fill": "fill and compact ten times the rows",
    "large_readrandom": "get among ten times the rows",
    "large_multiget": "get 100 at once among ten times the rows",
    "native_fillbatch": "fill in batches, next to RocksDB's own program",
    "native_readrandom": "get, next to RocksDB's own program",
    "native_readseq": "scan, next to RocksDB's own program",
    "ycsb_a": "YCSB A: half reads, half updates",
    "ycsb_b": "YCSB B: 95 % reads, 5 % updates",
    "ycsb_c": "YCSB C: reads",
    "ycsb_d": "YCSB D: reads of the latest, 5 % inserts",
    "ycsb_e": "YCSB E: scans of 1 to 100, 5 % inserts",
    "ycsb_f": "YCSB F: half reads, half read-modify-writes",
    "ycsb_geometric_mean": "YCSB: geometric mean of A to F",
    "s3_missing_get": "get of an absent key, requests of 20 ms each",
    "s3_checkpoint": "checkpoint, requests of 20 ms each",
    "s3_clone": "clone, requests of 20 ms each",
    "s3_open": "open, requests of 20 ms each",
    "get_0_sealed": "read one path, nothing staged",
    "get_10_sealed": "read one path behind 10 sealed tokens",
    "get_100_sealed": "read one path behind 100 sealed tokens",
    "get_100_compacted": "the same after compacting them",
    "list_tombstones_1000": "list a branch of 1,000 staged deletions",
    "list_tombstones_10000": "list a branch of 10,000 staged deletions",
    "list_tombstones_100000": "list a branch of 100,000 staged deletions",
    "list_tombstones_999999": "list a branch of 999,999 staged deletions",
    "commit_1m_memory": "memory to commit a million entries",
    "upload_2gb_memory": "memory to upload 2 GB",
    "download_2gb_memory": "memory to download 2 GB",
    "idle_requests": "requests of nodes with 1,000 idle tenants",
    "relocation_added_ms_p99": "relocation: what it adds to reads, p99",
    "relocation_lost_writes": "relocation: writes lost",
    "relocation_failed_reads": "relocation: reads that fail",
}
"""What a measurement is; one without a label shows its name. A label with a suite wins."""

_OTHERS: Final = (
    "pypaimon",
    "pyiceberg",
    "deltalake",
    "delta-spark",
    "spark-parquet",
    "paimon-spark",
    "rocksdict",
    "db_bench",
    "slatedb",
    "pyarrow",
    "lakefs",
)
"""How the names of other software begin; other peers are lakebed itself in another state."""

_WORDS: Final = {
    "memtable": "in memory",
    "cached": "in the cache",
    "uncached": "not in the cache",
    "small_cache": "a cache of 1 % of the data",
}
_READS: Final = {
    "readhot": "get hot keys",
    "readrandom": "get random keys",
    "readmissing": "get absent keys",
    "multiget": "get many keys at once",
}
_COLORS: Final = ("#00796b", "#b26a00", "#5e35b1", "#c2185b", "#1565c0")
_ROW: Final = 26
_LEFT: Final = 316
_RIGHT: Final = 30
_WIDTH: Final = 664


def label_of(workload: str, suite: str) -> str:
    """Name a measurement in words."""
    read, _, place = workload.partition("_")
    if read in _READS and place in _WORDS:
        return f"{_READS[read]}, {_WORDS[place]}"
    words = (
        workload.replace("_", " ")
        .replace("server ", "server, clients: ")
        .replace("failover ", "failover, tenants in the last number: ")
    )
    return LABELS.get(f"{suite}/{workload}") or LABELS.get(workload, words)


def is_other(peer: str) -> bool:
    """Whether a peer is other software."""
    return peer.startswith(_OTHERS)


def format_value(value: float, unit: str) -> str:
    """Three digits and a unit; large counts with separators."""
    shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{shown} {unit}"


def format_ratio(peer: str, ratio: float) -> str:
    """Two digits below 10; bold where other software is better by more than noise."""
    shown = f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2g}x"
    return f"**{shown}**" if ratio < 0.95 and is_other(peer) else shown


def write_row(result: dict[str, Any], suite: str) -> str:
    """One row of a table: what, lakebed, the others, the ratios."""
    unit = result["unit"]
    peers = [f"{peer} {format_value(value, unit)}" for peer, value in result["peers"].items()]
    ratios = [format_ratio(peer, result["ratio"][peer]) for peer in result["peers"]]
    cells = [
        label_of(result["workload"], suite),
        format_value(result["lakebed"], unit),
        "<br>".join(peers),
        "<br>".join(ratios),
    ]
    return "| " + " | ".join(cells) + " |"


def compare_with_others(results: list[dict[str, Any]], suite: str) -> dict[str, dict[str, float]]:
    """The ratios to other software, by the labels of their measurements."""
    return {
        label_of(result["workload"], suite): ratios
        for result in results
        if (ratios := {peer: ratio for peer, ratio in result["ratio"].items() if is_other(peer)})
    }


def draw_plot(rows: dict[str, dict[str, float]], title: str) -> str:
    """Draw one dot for each ratio, a line of the plot for each measurement."""
    peers = list(dict.fromkeys(peer for ratios in rows.values() for peer in ratios))
    values = [ratio for ratios in rows.values() for ratio in ratios.values()]
    low, high = math.floor(math.log10(min(*values, 0.5))), math.ceil(math.log10(max(*values, 2)))
    top = 34 + 24 * math.ceil(len(peers) / 2)
    height = top + _ROW * len(rows) + 34

    def place(ratio: float) -> float:
        return _LEFT + (math.log10(ratio) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="{_FONT}" font-size="14" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" rx="10" fill="#ffffff"/>',
    ]
    for index, peer in enumerate(peers):
        x, y = 20 + 290 * (index % 2), 26 + 24 * (index // 2)
        parts.append(f'<circle cx="{x}" cy="{y - 5}" r="6" fill="{_COLORS[index % len(_COLORS)]}"/>')
        parts.append(f'<text x="{x + 14}" y="{y}" fill="#1f2933">{escape(peer)}</text>')
    for power in range(low, high + 1):
        x = place(10**power)
        stroke = "#1f2933" if power == 0 else "#d5dbe1"
        parts.append(f'<path d="M{x:.1f} {top - 8}V{height - 30}" stroke="{stroke}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle" fill="#52606d">{10**power:g}x</text>')
    for index, (name, ratios) in enumerate(rows.items()):
        y = top + _ROW * index + 12
        text = escape(name if len(name) <= 41 else name[:39] + "...")
        at = f'x="{_LEFT - 14}" y="{y + 5}"'
        parts.append(f'<text {at} text-anchor="end" font-size="13" fill="#1f2933">{text}</text>')
        for peer, ratio in ratios.items():
            color = _COLORS[peers.index(peer) % len(_COLORS)]
            parts.append(f'<circle cx="{place(ratio):.1f}" cy="{y}" r="6" fill="{color}" fill-opacity="0.85"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def make_files() -> dict[Path, str]:
    """Make the page and the plots, by their paths."""
    paths = {suite: RESULTS / f"{suite}.json" for suite in SUITES}
    runs = {suite: json.loads(path.read_text()) for suite, path in paths.items() if path.exists()}
    parts = [INTRO.format(machine=_MACHINE.format(**runs["table"]["machine"]))]
    files = {}
    for suite, run in runs.items():
        heading, subject = SUITES[suite]
        versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        part = "" if run["scale"] == 1 else f", with {run['scale']:g} of the rows, files and bytes that are named here,"
        dates = [result.get("date", run["date"]) for result in run["results"]]
        older = {date: dates.count(date) for date in sorted(set(dates) - {run["date"]})}
        parts.append(f"## {heading}\n\n{subject} Measured on {run['date']}{part} with {versions}.")
        parts.append("".join(f"{count} of the rows were measured on {date}.\n" for date, count in older.items()))
        rows = compare_with_others(run["results"], suite)
        if rows:
            path = PLOTS / f"performance-{suite}.svg"
            files[path] = draw_plot(rows, f"{heading}: how many times better lakebed is")
            what = f"Ratios of {heading.lower()} on a logarithmic axis: right of the line lakebed is better"
            parts.append(f"![{what}](assets/{path.name})\n")
        parts.append("| measurement | lakebed | others | ratio |\n| --- | --- | --- | --- |")
        parts.append("\n".join(write_row(result, suite) for result in run["results"]) + "\n")
        if suite in REASONS:
            parts.append(REASONS[suite] + "\n")
    return {PAGE: "\n".join(parts), **files}


def write_page() -> None:
    """Write the page and the plots."""
    for path, text in make_files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_page()
