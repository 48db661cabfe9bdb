"""Fixtures: the format's Java implementation in one process, and a warehouse that it shares with lakebed.

Every test in this folder runs in one group of pytest-xdist, so that a test run starts one Java process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakebed
from lakebed import Lake
from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from worlds.required import miss

HERE = Path(__file__).parent
EPOCH_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
HEAP = "-Xmx1g"
S3_CLIENT = "org.apache.paimon:paimon-s3:1.4.2"
JAVA_FLOATS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One group: one Java process for the whole run. Without pytest-xdist there are no groups."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if str(item.path).startswith(f"{HERE}{os.sep}"):
            item.add_marker(pytest.mark.xdist_group("paimon-java"))


class JavaError(Exception):
    """The Java implementation refused; its own words."""


def encode(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Values as the worker's JSON; exact for every type that the format has."""
    type_ = column.type
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_timestamp(type_):
        scale = EPOCH_NS[type_.unit]
        return [None if v is None else str(v * scale) for v in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_date32(type_):
        return column.cast(pa.int32()).to_pylist()
    if pa.types.is_time32(type_):
        scale = 1000 if type_.unit == "s" else 1
        return [None if v is None else v * scale for v in column.cast(pa.int32()).to_pylist()]
    if pa.types.is_floating(type_):
        return [None if v is None else JAVA_FLOATS.get(repr(v), repr(v)) for v in column.to_pylist()]
    if pa.types.is_decimal(type_):
        return [None if v is None else format(v, "f") for v in column.to_pylist()]
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return [None if v is None else v.hex() for v in column.to_pylist()]
    if pa.types.is_struct(type_):
        parts = [encode(part) for part in column.flatten()]
        rows = [list(values) for values in zip(*parts, strict=True)]
        return [None if null else row for null, row in zip(column.is_null().to_pylist(), rows, strict=True)]
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_):
        return [encode(item.values) if item.is_valid else None for item in column]
    return column.to_pylist()


def exact(rows: pa.Table, columns: Iterable[str] | None = None) -> list[tuple[Any, ...]]:
    """Rows as tuples that compare exactly: NaN equals itself, -0.0 differs from 0.0; in a stable order."""
    names = list(columns or rows.column_names)
    result = zip(*(encode(rows[name]) for name in names), strict=True)
    return sorted((tuple(map(_hashable, row)) for row in result), key=repr)


def _hashable(value: Any) -> Any:
    """Lists as tuples."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def type_json(type_: pa.DataType, *, nullable: bool = True) -> Any:
    """The format's JSON of an Arrow type."""
    end = "" if nullable else " NOT NULL"
    if pa.types.is_list(type_):
        return {"type": "ARRAY" + end, "element": type_json(type_.value_type)}
    if pa.types.is_map(type_):
        key, value = type_json(type_.key_type, nullable=False), type_json(type_.item_type)
        return {"type": "MAP" + end, "key": key, "value": value}
    if pa.types.is_struct(type_):
        fields = [{"name": f.name, "type": type_json(f.type)} for f in type_]
        return {"type": "ROW" + end, "fields": fields}
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale}){end}"
    if pa.types.is_timestamp(type_):
        digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[type_.unit]
        return f"TIMESTAMP({digits}){' WITH LOCAL TIME ZONE' if type_.tz else ''}{end}"
    if pa.types.is_fixed_size_binary(type_):
        return f"BINARY({type_.byte_width}){end}"
    return NAMES[type_] + end


NAMES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BYTES",
    pa.date32(): "DATE",
    pa.time32("ms"): "TIME(3)",
}
ARROW = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIME": pa.time32("ms"),
    "STRING": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BYTES": pa.binary(),
    "VARBINARY": pa.binary(),
    "BINARY": pa.binary(),
    "VARIANT": pa.string(),
}


def arrow_type(node: Any) -> pa.DataType:
    """The Arrow type of the format's JSON."""
    if isinstance(node, dict):
        name = node["type"].split(" ")[0]
        if name == "ARRAY":
            return pa.list_(arrow_type(node["element"]))
        if name == "MAP":
            return pa.map_(arrow_type(node["key"]), arrow_type(node["value"]))
        if name == "MULTISET":
            return pa.map_(arrow_type(node["element"]), pa.int32())
        return pa.struct([(field["name"], arrow_type(field["type"])) for field in node["fields"]])
    name, numbers = re.match(r"([A-Z_]+)(?:\(([\d, ]+)\))?", node).groups()  # type: ignore[union-attr]
    digits = [int(number) for number in numbers.split(",")] if numbers else []
    if name == "DECIMAL":
        return pa.decimal128(*(digits or [10, 0]))
    if name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        precision = digits[0] if digits else 6
        unit = "ms" if precision <= 3 else "us" if precision <= 6 else "ns"
        return pa.timestamp(unit, "UTC" if "LOCAL" in node or name.endswith("LTZ") else None)
    return ARROW[name]


def decode(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """The worker's JSON as an Arrow array."""
    return pa.array([_decode(value, type_) for value in values], _storage(type_)).cast(type_)


def _storage(type_: pa.DataType) -> pa.DataType:
    """What `_decode` makes: numbers in place of times, so that every value of the format has one."""
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_date32(type_) or pa.types.is_time32(type_):
        return pa.int32()
    if pa.types.is_list(type_):
        return pa.list_(_storage(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(_storage(type_.key_type), _storage(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _storage(field.type)) for field in type_])
    return type_


def _decode(value: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_timestamp(type_):
        whole, rest = divmod(int(value), EPOCH_NS[type_.unit])
        assert rest == 0, f"{value} nanoseconds do not fit {type_}"
        return whole
    if pa.types.is_float32(type_):
        return float(np.float32(value))
    if pa.types.is_float64(type_):
        return float(value)
    if pa.types.is_decimal(type_):
        return Decimal(value)
    if pa.types.is_binary(type_):
        return bytes.fromhex(value)
    if pa.types.is_list(type_):
        return [_decode(item, type_.value_type) for item in value]
    if pa.types.is_map(type_):
        return [(_decode(key, type_.key_type), _decode(item, type_.item_type)) for key, item in value]
    if pa.types.is_struct(type_):
        return {field.name: _decode(item, field.type) for field, item in zip(type_, value, strict=True)}
    return value


class Java:
    """The Java implementation over one warehouse, driven by JSON lines in a process of its own.

    Tests cannot import this module, so the functions on rows that they need are here too.
    """

    encode = staticmethod(encode)
    exact = staticmethod(exact)

    def __init__(self, folder: Path, *, more_jars: str = "") -> None:
        self.log = folder / "java.log"
        self.warehouse = ""
        self.catalog: dict[str, str] = {}
        home = os.environ.get("JAVA_HOME")
        program = str(Path(home, "bin", "java")) if home else "java"
        classes = os.pathsep.join([str(HERE / "classes"), str(HERE / "lib" / "*"), more_jars])
        # What the second compiler would gain in tests, it never earns back.
        flags = [HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC", "-Dfile.encoding=UTF-8"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [program, *flags, "-cp", classes, "Worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            )

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def call(self, verb: str, table: str = "default.t", **request: Any) -> Any:
        """One request; its answer, or `JavaError`. The verbs and their words: Rows.java and Upkeep.java."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"verb": verb, "warehouse": self.warehouse, "catalog": self.catalog, "table": table, **request}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise JavaError("the Java process ended: " + self.log.read_text()[-2000:])
        answer = json.loads(line)
        if "error" in answer:
            with self.log.open("a") as log:
                log.write(answer["trace"])
            raise JavaError(answer["error"])
        return answer["answer"]

    def create(
        self,
        table: str,
        schema: pa.Schema,
        *,
        primary_keys: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        types: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a table; `types` gives columns the format's own words in place of the Arrow type's."""
        given = types or {}
        columns = [
            {"name": f.name, "type": given.get(f.name) or type_json(f.type, nullable=f.nullable)} for f in schema
        ]
        self.call(
            "create",
            table,
            columns=columns,
            primary_keys=list(primary_keys),
            partition_keys=list(partition_keys),
            options=dict(options or {}),
        )

    def write(self, table: str, rows: pa.Table, *, kind: str | Sequence[str] = "+I", **request: Any) -> None:
        """Write rows of all columns, in the table's order, in one commit; `kind` "-D" deletes them by key."""
        kinds = [kind] * rows.num_rows if isinstance(kind, str) else list(kind)
        values = [list(row) for row in zip(*map(encode, rows.columns), strict=True)]
        self.call("write", table, rows=values, kinds=kinds, **request)

    def find(
        self, table: str, wheres: Sequence[Mapping[str, Any]], *, column: str = "id", **request: Any
    ) -> list[list[int]]:
        """For each of many filters of one column, the numbers in a BIGINT column of the rows found, sorted."""
        answer = self.call("find", table, wheres=list(wheres), column=column, **request)
        return [sorted(numbers) for numbers in answer]

    def read(
        self,
        table: str,
        *,
        where: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        **request: Any,
    ) -> pa.Table:
        """Rows, by a filter of Filters.java whose values are the worker's JSON, and of a branch or with options."""
        answer = self.call("read", table, where=where, columns=list(columns) if columns else None, **request)
        types = [arrow_type(column["type"]) for column in answer["columns"]]
        rows = answer["rows"]
        arrays = [decode([row[i] for row in rows], type_) for i, type_ in enumerate(types)]
        return pa.table(arrays, names=[column["name"] for column in answer["columns"]])


@pytest.fixture(scope="session")
def java_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """One process of the Java implementation for the whole run."""
    if not (HERE / ".ready").exists():
        miss("the format's Java implementation is not installed: run `make test`, which gets it by Maven")
    java = Java(tmp_path_factory.mktemp("java"))
    yield java
    java.close()


@pytest.fixture
def java_in_branches(java_process: Java, tmp_path: Path) -> Iterator[tuple[Java, Running]]:
    """The Java implementation with its S3 client, and a server with an S3 gateway and a repository ``analytics``."""
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not installed")
    copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
    subprocess.run(["mvn", "-q", "-B", copy, f"-Dartifact={S3_CLIENT}", f"-DoutputDirectory={tmp_path}"], check=True)
    java = Java(tmp_path, more_jars=str(tmp_path / "*"))
    java.warehouse = str(tmp_path / "lake")
    options = ServerOptions(durable=False, s3_key_file=str(tmp_path / "s3.key"))
    try:
        with start_server(java.warehouse, options=options) as running:
            started = running.started
            running.site.repositories.create("analytics").create_branch("etl")
            java.catalog = {
                "metastore": "rest",
                "uri": f"{started.endpoint}/paimon",
                "warehouse": "lake",
                "token.provider": "bear",
                "token": f"{started.access_key}.{started.secret}",
                "s3.endpoint": started.endpoint,
                "s3.access-key": str(started.access_key),
                "s3.secret-key": str(started.secret),
                "s3.region": "us-east-1",
                "s3.path-style-access": "true",
            }
            yield java, running
    finally:
        java.close()


@pytest.fixture
def java(java_process: Java, tmp_path: Path) -> Java:
    """The Java implementation, over a fresh warehouse."""
    java_process.warehouse = str(tmp_path / "lake")
    java_process.catalog = {}
    return java_process


@pytest.fixture
def served(java: Java) -> Iterator[Java]:
    """The Java implementation, whose catalog is a server of the warehouse: it commits through lakebed."""
    running = start_server(java.warehouse, options=ServerOptions(durable=False))
    started = running.started
    java.catalog = {
        "metastore": "rest",
        "uri": f"{started.endpoint}/paimon",
        "warehouse": "lake",
        "token.provider": "bear",
        "token": f"{started.access_key}.{started.secret}",
    }
    yield java
    java.catalog = {}
    running.stop()


@pytest.fixture
def lake(java: Java) -> Lake:
    """The same warehouse as a lake."""
    return lakebed.open(java.warehouse)
