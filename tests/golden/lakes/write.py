"""Write a small lake, and what it holds, with the lakebed that is imported: ``write.py FOLDER``, then pack the folder.

The process ends without closing anything, as one that is killed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakebed
from lakebed import kv, repo

PLAIN = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string()), ("n", pa.int64())])
PARTITIONED = PLAIN.append(pa.field("p", pa.string(), nullable=False))
KINDS: dict[str, dict[str, Any]] = {
    "dedup": {"primary_keys": ["p", "k"], "options": {"bucket": "2"}},
    "first": {"primary_keys": ["k"], "options": {"merge-engine": "first-row", "bucket": "1"}},
    "partial": {"primary_keys": ["k"], "options": {"merge-engine": "partial-update", "bucket": "1"}},
    "agg": {
        "primary_keys": ["k"],
        "options": {
            "merge-engine": "aggregation",
            "fields.n.aggregate-function": "sum",
            "fields.v.aggregate-function": "last_value",
            "bucket": "1",
        },
    },
    "dyn": {"primary_keys": ["k"], "options": {"bucket": "-1"}},
    "dv": {"primary_keys": ["k"], "options": {"deletion-vectors.enabled": "true", "bucket": "1"}},
    "clog": {"primary_keys": ["k"], "options": {"changelog-producer": "input", "bucket": "1"}},
    "fullc": {"primary_keys": ["k"], "options": {"changelog-producer": "full-compaction", "bucket": "1"}},
    "app": {"primary_keys": [], "options": {}},
    "appdv": {"primary_keys": [], "options": {"deletion-vectors.enabled": "true"}},
}
"""Tables by name; what a version cannot create, it leaves out."""


def write_rows(table: Any, rows: dict[int, list[Any]], *, has_keys: bool, is_partitioned: bool) -> None:
    """Upsert or append rows: values of ``v`` and ``n`` by ``k``."""
    columns = {"k": list(rows), "v": [v for v, _ in rows.values()], "n": [n for _, n in rows.values()]}
    if is_partitioned:
        columns["p"] = [f"p{k % 3}" for k in rows]
    batch = pa.table(columns, schema=PARTITIONED if is_partitioned else PLAIN)
    (table.upsert if has_keys else table.append)(batch)


def read_rows(table: Any, version: str | None = None) -> list[list[Any]]:
    """Rows in the order of their keys."""
    rows = table.read(columns=["k", "v", "n"], **({} if version is None else {"version": version}))
    return sorted([row["k"], row["v"], row["n"]] for row in rows.to_pylist())


def write_tables(url: str) -> dict[str, Any]:
    """Tables with a tag, a branch, a compaction, deletes, and versions that expired."""
    lake, contents = lakebed.open(url), {}
    for name, kind in KINDS.items():
        is_partitioned, has_keys = name in ("dedup", "app"), bool(kind["primary_keys"])
        schema, partition_keys = (PARTITIONED, ["p"]) if is_partitioned else (PLAIN, [])
        try:
            table = lake.create_table(name, schema, partition_keys=partition_keys, **kind)
        except lakebed.LakebedError:
            continue
        for day in range(5):
            keys = [(day * 3 + j) % 7 if has_keys else day * 3 + j for j in range(3)]
            rows: dict[int, list[Any]] = {k: [f"v{day}-{j}", day] for j, k in enumerate(keys)}
            write_rows(table, rows, has_keys=has_keys, is_partitioned=is_partitioned)
            if day == 1:
                table.create_tag("kept")
            if day == 2:
                table.compact(full=True)
            if day == 3:
                table.create_branch("side", tag="kept")
                side = lake.table(name, branch="side")
                write_rows(side, {100: ["side", 1]}, has_keys=has_keys, is_partitioned=is_partitioned)
                if name in ("dedup", "app", "appdv", "dyn"):
                    table.delete(where="k IN (1, 4)")
        table.expire(retain_max=2, retain_min=1, older_than_ms=2**60)
        if name == "dv":
            table.compact(full=True)
        contents[name] = {
            "main": read_rows(lake.table(name)),
            "kept": read_rows(lake.table(name), "kept"),
            "side": read_rows(lake.table(name, branch="side")),
        }
    return contents


def write_database(url: str) -> dict[str, Any]:
    """A database with a checkpoint, files of two levels, and rows that are in its log alone."""

    def apply(puts: dict[str, str], deletes: list[str]) -> None:
        batch = kv.WriteBatch()
        for key, value in puts.items():
            batch.put(key.encode(), value.encode())
        for key in deletes:
            batch.delete(key.encode())
        database.write(batch)

    def pairs() -> dict[str, str]:
        return {key.decode(): value.decode() for key, value in database.scan()}

    database = kv.open(f"{url}/serving.kv")
    apply({f"k{i}": f"v{i}" for i in range(20)}, [])
    database.flush(memtable=True)
    checkpoint, kept = database.create_checkpoint(kv.CheckpointOptions(name="kept")).id, pairs()
    apply({f"k{i}": f"w{i}" for i in range(5)}, ["k10"])
    database.flush(memtable=True)
    database.compact(full=True)
    apply({"z1": "1"}, ["k11"])
    return {"now": pairs(), "kept": kept, "checkpoint": checkpoint}


def write_repository(url: str) -> dict[str, Any]:
    """A repository with a tag, a merge, rows staged before and after a compaction, and a deleted branch."""
    options = repo.RepositoryOptions(background=False, committer="ann")
    repositories = repo.open_all(url, options=options)
    repositories.create("analytics")
    repository = repositories.repository("analytics")
    main = repository.branch("main")
    for i in range(6):
        main.put(f"d{i % 3}/f{i}", b"x%d" % i, metadata={"n": str(i)})
    main.commit("one", metadata={"day": "1"})
    repository.create_tag("v1", ref="main")
    make_branch = getattr(repository, "fork", None) or repository.create_branch
    make_branch("dev")
    dev = repository.branch("dev")
    dev.put("dev/x", b"dev")
    dev.commit("dev")
    dev.put("dev/staged", b"staged")
    main.delete("d0/f0")
    main.commit("two")
    main.merge("dev")
    main.put("gone", b"g")
    main.reset()
    main.put("staged/1", b"s1")
    main.delete("d2/f2")
    make_branch("old", version="v1")
    old = repository.branch("old")
    old.put("lost", b"l")
    old.commit("lost")
    lost_id = old.commit_id
    repository.delete_branch("old")
    repository.set_retention(default_days=30)
    repository.protect("prod*")
    main.compact(force=True)
    main.put("after", b"compact")

    def texts(reference: Any) -> dict[str, str]:
        return {row.path: bytes(reference.get(row.path)).decode() for row in reference.list()}

    return {
        "main": texts(main),
        "dev": texts(dev),
        "v1": texts(repository.ref("v1")),
        "lost": texts(repository.ref(lost_id)),
        "lost_id": lost_id,
        "log": [commit.id for commit in repository.log("main")],
    }


def main() -> None:
    """Write the lake, and ``FOLDER.json``."""
    url = sys.argv[1]
    lakebed.open(url)
    contents = {
        "tables": write_tables(url),
        "database": write_database(url),
        "repository": write_repository(url),
    }
    Path(f"{url}.json").write_text(json.dumps(contents, sort_keys=True) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
