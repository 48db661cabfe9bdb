"""The statements of a random program: each runs in Spark, then on the judge, and settles the line that it changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from worlds.sql.columns import KINDS, STRUCT, WIDER, Both, Column, Kind, random_condition
from worlds.sql.state import Line, Rows
from worlds.sql.world import NAME, PARTITIONS, SqlWorld, refused

EVER: Final = "2200-01-01 00:00:00"
DYNAMIC: Final = "spark.sql.sources.partitionOverwriteMode"
INEXACT: Final = ("can be overwritten only by comparisons", "cannot translate expression to source filter",
    "The overwrite is of the partition")  # fmt: skip
"""How REPLACE WHERE is refused; the last is of a condition that is what PARTITION says, and of rows of another one."""


def _line(world: SqlWorld) -> tuple[str, Line]:
    branch = world.rng.choice(sorted(world.lines))
    return branch, world.lines[branch]


def _literals(columns: tuple[Column, ...], rows: pa.Table) -> str | None:
    """Rows as VALUES; None: of types without literals."""
    if any(column.kind.is_nested for column in columns) or not rows.num_rows:
        return None
    lists = []
    for column in columns:
        values = rows[column.name]
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.int64())
        lists.append([column.kind.literal(value).spark for value in values.to_pylist()])
    return "VALUES " + ", ".join(f"({', '.join(row)})" for row in zip(*lists, strict=True))


# ---- rows come


def insert(world: SqlWorld) -> None:
    """Of a frame, of literals, or of a query of all columns or some."""
    branch, line = _line(world)
    rng, columns = world.rng, line.columns
    src = world.give(columns)
    name, names = world.name_of(branch), [column.name for column in columns]
    form = rng.choice(("table", "values", "by name", "columns", "frame"))
    if form == "values":
        values = _literals(columns, src)
        world.run(f"INSERT INTO {name} {values or 'SELECT * FROM src'}")
    elif form == "frame":
        world.history.append("-- writeTo.append")
        world.session.table("src").writeTo(name).append()
    elif form == "table":
        world.run(f"INSERT INTO {name} SELECT * FROM src")
    else:
        choice = [item for item in names if item in world.keys or rng.random() < 0.6]
        rng.shuffle(choice)
        listed = ", ".join(choice)
        head = f"INSERT INTO {name} BY NAME" if form == "by name" else f"INSERT INTO {name} ({listed})"
        world.run(f"{head} SELECT {listed} FROM src")
        nulls = [src[item.name] if item.name in choice else pa.nulls(src.num_rows, item.kind.arrow) for item in columns]
        src = pa.table(nulls, schema=src.schema)
    world.settle(branch, world.upserted(line, src))


def overwrite(world: SqlWorld) -> None:
    """Of the whole table, of one partition, or of those with new rows."""
    branch, line = _line(world)
    rng, name = world.rng, world.name_of(branch)
    src = world.give(line.columns)
    form = rng.choice(("all", "static", "dynamic")) if world.shape.is_partitioned else "all"
    gone = Both("true", "true")
    query = f"INSERT OVERWRITE {name} SELECT * FROM src"
    if form == "static":
        value = rng.choice((*PARTITIONS, None))
        if value is None and world.shape.is_keyed:
            value = "a"
        literal = KINDS["STRING"].literal(value)
        others = ", ".join(column.name for column in line.columns if column.name != "p")
        text = "NULL" if value is None else '"' + value + '"'
        query = f"INSERT OVERWRITE {name} PARTITION (p = {text}) ({others}) SELECT {others} FROM src"
        gone = Both("", f"p IS NOT DISTINCT FROM {literal.duck}")
        place = src.schema.get_field_index("p")
        src = src.set_column(place, src.schema.field(place), pa.array([value] * src.num_rows, pa.string()))
        if world.shape.is_keyed and src.num_rows:  # Spark takes no maps of DuckDB's results without rows
            src = world.judge.asked(line.columns, src, "SELECT DISTINCT ON (k) * FROM t ORDER BY ALL", src)
            src = pa.table(
                [src[item.name].cast(item.kind.arrow) for item in line.columns], schema=line.rows.newest.schema
            )
            world.session.createDataFrame(src).createOrReplaceTempView("src")
    elif form == "dynamic":
        gone = Both("", "EXISTS (SELECT 1 FROM src WHERE src.p IS NOT DISTINCT FROM t.p)")
        world.session.conf.set(DYNAMIC, "dynamic")
    try:
        world.run(query)
    finally:
        world.session.conf.unset(DYNAMIC)
    _replaced(world, branch, src, gone.duck)


def _replaced(world: SqlWorld, branch: str, src: pa.Table, gone: str) -> None:
    """Settle: rows went, then others came."""
    line = world.lines[branch]
    delete = f"DELETE FROM t WHERE {gone}"
    visible = world.judge.changed(line.columns, line.rows.visible, [delete], src)
    left = world.judge.changed(line.columns, line.rows.newest, [delete], src)
    kept = Line(Rows(line.columns, left, left))
    world.settle(branch, world.upserted(kept, src), visible=visible if world.shape.hides_new else None)


def replace_where(world: SqlWorld) -> None:
    """Of rows that a condition finds, where the catalog takes it."""
    branch, line = _line(world)
    columns = line.columns
    if world.shape.is_keyed:
        columns = tuple(column for column in columns if column.name == "p")
    if not columns:
        return
    where = random_condition(world.rng, columns)
    src = world.give(line.columns)
    if refused(world, f"INSERT INTO {world.name_of(branch)} REPLACE WHERE {where.spark} SELECT * FROM src", *INEXACT):
        world.counts["refused"] += 1
        world.settle(branch, line.rows.newest, most=0)
    else:
        _replaced(world, branch, src, where.duck)


# ---- rows change

REFUSED: Final = ("which does not replace a row", "which takes no deletes", "first-row", "partial-update")


def delete(world: SqlWorld) -> None:
    """Of rows that a condition finds."""
    branch, line = _line(world)
    src = world.give(line.columns)
    prefix, subqueries = world.rng.choice((("", False), ("t.", True)))
    where = random_condition(world.rng, line.columns, prefix=prefix, subqueries=subqueries)
    statement = f"DELETE FROM {world.name_of(branch)} t WHERE {where.spark}"
    if world.shape.deletes:
        world.run(statement)
    elif refused(world, statement, *REFUSED) is not None:
        world.settle(branch, line.rows.newest, most=0)
        return
    left = world.judged(line, f"DELETE FROM t WHERE {where.duck}", src)
    newest = world.table(branch).latest()
    truncated = newest is not None and newest.id > line.latest_id and newest.commit_kind == "OVERWRITE"
    world.settle(branch, left, visible=left if truncated else None)


def _value(world: SqlWorld, line: Line, column: Column, source: str | None) -> Both:
    """What SET gives a column."""
    rng, kind = world.rng, column.kind
    if source is not None and rng.random() < 0.6:
        return Both(f"{source}.{column.name}", f"{source}.{column.name}")
    same = [item for item in line.columns if item.kind == kind and item.name != column.name]
    prefix = "t." if source else ""
    if same and rng.random() < 0.5:
        other = prefix + rng.choice(same).name
        return Both(other, other)
    if kind.is_nested:
        return Both("NULL", "NULL")
    if column.name == "p":
        return kind.literal(rng.choice(PARTITIONS))
    return kind.literal(rng.choice((None, *kind.values)))


def _set(world: SqlWorld, line: Line, source: str | None = None) -> Both:
    rng = world.rng
    fixed = world.keys if world.shape.is_keyed else ()
    allowed = [column for column in line.columns if column.name not in fixed]
    parts = []
    for column in rng.sample(allowed, min(len(allowed), rng.randint(1, 2))):
        value = _value(world, line, column, source)
        parts.append(Both(*(f"{column.name} = {item}" for item in value)))
    return Both(*(", ".join(part[side] for part in parts) for side in (0, 1)))


def update(world: SqlWorld) -> None:
    """Of columns, or of a field of a struct."""
    branch, line = _line(world)
    src = world.give(line.columns)
    prefix, subqueries = world.rng.choice((("", False), ("t.", True)))
    where = random_condition(world.rng, line.columns, prefix=prefix, subqueries=subqueries)
    structs = [column.name for column in line.columns if column.kind.spark == STRUCT]
    if structs and world.rng.random() < 0.5:
        (name,) = structs[:1]
        packed = f"struct_pack(a := 5, b := {name}.b, c := {name}.c)"
        sets = Both(f"{name}.a = 5", f"{name} = {packed}")
    else:
        sets = _set(world, line)
    statement = f"UPDATE {world.name_of(branch)} t SET {sets.spark} WHERE {where.spark}"
    if world.shape.engine != "deduplicate":
        refused(world, statement, *REFUSED)
        world.settle(branch, line.rows.newest, most=0)
    else:
        world.run(statement)
        world.settle(branch, world.judged(line, f"UPDATE t SET {sets.duck} WHERE {where.duck}", src))


def merge(world: SqlWorld) -> None:
    """With any clauses."""
    branch, line = _line(world)
    rng, columns = world.rng, line.columns
    src = world.give(columns)
    names = ", ".join(column.name for column in columns)
    values = ", ".join(f"src.{column.name}" for column in columns)
    clauses: list[Both] = []

    def clause(kind: str, action: Both, prefix: str) -> None:
        condition = Both("", "")
        if rng.random() < 0.5:
            result = random_condition(rng, columns, prefix=prefix, depth=1)
            condition = Both(*(f" AND ({item})" for item in result))
            clauses.append(Both(*(f"WHEN {kind}{condition[side]} THEN {action[side]}" for side in (0, 1))))
        elif not any(item.spark.startswith(f"WHEN {kind} THEN") for item in clauses):
            clauses.append(Both(*(f"WHEN {kind} THEN {action[side]}" for side in (0, 1))))

    def ordered(kind: str, prefix: str, source: str | None) -> None:
        for _ in range(rng.randint(0, 2)):
            action = Both("DELETE", "DELETE")
            if rng.random() < 0.6:
                action = Both(*(f"UPDATE SET {item}" for item in _set(world, line, source)))
            if not any(item.spark.startswith(f"WHEN {kind} THEN") for item in clauses):
                clause(kind, action, prefix)

    inserts_only = rng.random() < 0.3
    if not inserts_only:
        ordered("MATCHED", rng.choice(("t.", "src.")), "src")
    for _ in range(rng.randint(1, 2) if inserts_only else rng.random() < 0.7):
        whole = f"INSERT ({names}) VALUES ({values})"
        if any(item.spark.startswith("WHEN NOT MATCHED THEN") for item in clauses):
            break  # a clause without a condition is the last one
        clause("NOT MATCHED", Both(rng.choice(("INSERT *", whole)), whole), "src.")
    if not inserts_only and rng.random() < 0.4:
        ordered("NOT MATCHED BY SOURCE", "t.", None)
    if not clauses:
        return
    inserts_only = all(item.spark.startswith(("WHEN NOT MATCHED THEN", "WHEN NOT MATCHED AND")) for item in clauses)
    world.counts["inserting merge"] += inserts_only
    on = " AND ".join(f"t.{key} = src.{key}" for key in world.keys)
    if not world.shape.is_keyed and rng.random() < 0.3:
        on += " AND t.k > 3"
    tail = Both(*(" ".join(item[side] for item in clauses) for side in (0, 1)))
    statement = f"MERGE INTO {world.name_of(branch)} t USING src ON {on} {tail.spark}"
    if world.shape.engine == "deduplicate" or inserts_only:  # other engines insert as well
        world.run(statement)
        world.settle(branch, world.judged(line, f"MERGE INTO t USING src ON {on} {tail.duck}", src))
    else:
        refused(world, statement, *REFUSED)
        world.settle(branch, line.rows.newest)


def truncate(world: SqlWorld) -> None:
    """Of all rows."""
    branch, line = _line(world)
    world.run(f"TRUNCATE TABLE {world.name_of(branch)}")
    empty = line.rows.newest.slice(0, 0)
    world.settle(branch, empty, visible=empty)


# ---- columns change


def alter(world: SqlWorld) -> None:
    """Columns are added, dropped, renamed, widened or moved."""
    branch, line = _line(world)
    rng, name = world.rng, world.name_of(branch)
    columns = list(line.columns)
    free = [column for column in columns if column.name not in world.keys]
    form = rng.choice(("add", "add", "drop", "rename", "widen", "move", "again"))
    if form in ("add", "again"):
        used = {column.name for column in columns}
        fresh = next(f"c{place}" for place in range(99) if f"c{place}" not in used)
        column = world.column(fresh, KINDS[rng.choice(sorted(KINDS))])
        where = rng.choice(("", "FIRST", f"AFTER {rng.choice(columns).name}"))
        world.run(f"ALTER TABLE {name} ADD COLUMN {fresh} {column.kind.spark} {where}")
        names = [item.name for item in columns]
        place = len(columns) if not where else 0 if where == "FIRST" else names.index(where.split()[1]) + 1
        columns.insert(place, column)
    elif form == "drop" and len(free) > 1:
        gone = rng.choice(free)
        statement = f"ALTER TABLE {name} DROP COLUMN {gone.name}"
        if world.functions.has_option(gone):
            assert refused(world, statement, "cannot be dropped while option") is not None
            return
        world.run(statement)
        columns.remove(gone)
    elif form == "rename" and free:
        old = rng.choice(free)
        fresh = next(f"r{place}" for place in range(99) if f"r{place}" not in {item.name for item in columns})
        world.run(f"ALTER TABLE {name} RENAME COLUMN {old.name} TO {fresh}")
        columns[columns.index(old)] = Column(old.number, fresh, old.kind)
    elif form == "widen":
        narrow = [column for column in free if column.kind.spark in WIDER]
        if not narrow:
            return
        old = rng.choice(narrow)
        wider = rng.choice(WIDER[old.kind.spark])
        world.run(f"ALTER TABLE {name} ALTER COLUMN {old.name} TYPE {wider}")
        columns[columns.index(old)] = Column(old.number, old.name, KINDS[wider])
    elif form == "move":
        moved, other = rng.sample(columns, 2)
        where = rng.choice(("FIRST", f"AFTER {other.name}"))
        world.run(f"ALTER TABLE {name} ALTER COLUMN {moved.name} {where}")
        columns.remove(moved)
        columns.insert(0 if where == "FIRST" else columns.index(other) + 1, moved)
    else:
        return
    line.rows = line.rows.under(columns)
    line.schema_changes += 1
    world.settle(branch, line.rows.newest, visible=line.rows.visible, most=0)


def _kind_from(source: str, kind: Kind) -> Kind:
    """The type that a query gives a column: a frame of Arrow's times without a zone has times with one, in Spark."""
    return KINDS["TIMESTAMP"] if source == "src" and kind.spark == "TIMESTAMP_NTZ" else kind


def _replaced_column(world: SqlWorld, line: Line, name: str, kind: Kind) -> Column:
    """A column of a replaced table: the old one of the same name and type, else a new one."""
    same = (item for item in line.columns if (item.name, item.kind) == (name, kind))
    return next(same, None) or world.column(name, kind)


def replace_table(world: SqlWorld) -> None:
    """CREATE OR REPLACE TABLE AS SELECT: other columns, and history stays."""
    line = world.main
    if world.shape.is_keyed:
        return
    src = world.give(line.columns)
    kept = [column for column in line.columns if column.name in world.keys or world.rng.random() < 0.6]
    partitioned = "PARTITIONED BY (p) " if world.shape.is_partitioned else ""
    names = ", ".join(item.name for item in kept)
    source = world.rng.choice(("src", NAME))
    query = f"SELECT {names}, CAST(length(CAST(k AS STRING)) AS INT) AS made FROM {source}"
    if any(item.name == "made" for item in kept):
        query = f"SELECT {names} FROM {source}"
    world.run(f"CREATE OR REPLACE TABLE {NAME} {partitioned}AS {query}")
    columns = [_replaced_column(world, line, item.name, _kind_from(source, item.kind)) for item in kept]
    if "AS made" in query:
        columns.append(_replaced_column(world, line, "made", KINDS["INT"]))
    base = line.rows.newest if source == NAME else src
    made = world.judge.asked(line.columns, base, query.replace(source, "t").replace("STRING", "VARCHAR"), src)
    rows = pa.table(
        [made[column.name].cast(column.kind.arrow) for column in columns], names=[column.name for column in columns]
    )
    line.rows = Rows(tuple(columns), rows, rows)
    line.schema_changes += 1
    world.settle("main", rows, visible=rows)


# ---- versions


def tag(world: SqlWorld) -> None:
    """One is made, moved or dropped."""
    line, rng = world.main, world.rng
    if world.tags and rng.random() < 0.3:
        name = rng.choice(sorted(world.tags))
        world.run(f"ALTER TABLE {NAME} DROP TAG {name}")
        del world.tags[name]
    elif line.versions:
        name, version = f"g{rng.randrange(4)}", rng.choice(sorted(line.versions))
        world.run(f"ALTER TABLE {NAME} CREATE OR REPLACE TAG {name} AS OF VERSION {version}")
        world.tags[name] = (version, line.versions[version])


def branch(world: SqlWorld) -> None:
    """One is made, published or dropped."""
    line, rng = world.main, world.rng
    if "b" in world.lines and rng.random() < 0.5:
        world.check_files()
        world.run("CALL lake.sys.delete_branch('db.t', 'b')")
        world.check_files(drops=True)
        del world.lines["b"]
        world.fork = (0, 0)
    elif "b" in world.lines:
        publish(world)
    elif line.versions:
        world.run("CALL lake.sys.create_branch('db.t', 'b')")
        made = line.copy()
        made.versions = {line.latest_id: line.versions[line.latest_id]}
        made.times_ms = {line.latest_id: line.times_ms[line.latest_id]}
        world.lines["b"] = made
        world.fork = (line.latest_id, line.schema_changes)
        world.check("b")


def publish(world: SqlWorld) -> None:
    """A fast-forward; refused when the main line has moved."""
    line, made = world.main, world.lines["b"]
    statement = "CALL lake.sys.fast_forward('db.t', 'b')"
    if world.fork != (line.latest_id, line.schema_changes):
        assert refused(world, statement, "Main has moved", "columns or options of main were changed") is not None
        world.check("main")
        return
    world.run(statement)
    line.rows = made.rows
    world.settle("main", made.rows.newest, visible=made.rows.visible)
    line.schema_changes += 1
    world.fork = (line.latest_id, line.schema_changes)


def rollback(world: SqlWorld) -> None:
    """To a version or tag, or the same as the newest version."""
    line, rng = world.main, world.rng
    targets = {str(version): (version, rows) for version, rows in line.versions.items()}
    targets |= {f"tag.{name}": tag for name, tag in world.tags.items()}
    if not targets:
        return
    name = rng.choice(sorted(targets))
    version, rows = targets[name]
    world.check_files()
    if rng.random() < 0.5:
        world.run(f"CALL lake.sys.rollback_to_as_latest('db.t', '{name}')")
    elif refused(world, f"CALL lake.sys.rollback('db.t', '{name}')", "started from snapshot") is not None:
        assert "b" in world.lines
        world.check("main")
        return
    else:
        newest = line.latest_id
        if version == newest:
            world.check("main")
            return
        line.versions = {item: kept for item, kept in line.versions.items() if item <= version}
        line.times_ms = {item: at for item, at in line.times_ms.items() if item <= version}
        world.tags = {item: tag for item, tag in world.tags.items() if tag[0] <= version}
    world.check_files(drops=True)
    then = rows.under(line.columns)
    world.settle("main", then.newest, visible=then.visible, most=10**6)


def expire(world: SqlWorld) -> None:
    """All versions but the newest few."""
    keep = world.rng.randint(1, 4)
    line = world.main
    world.run(
        f"CALL lake.sys.expire_snapshots(table => 'db.t', retain_max => {keep}, retain_min => 1, "
        "older_than => '1971-01-01')"
    )
    for gone in sorted(line.versions)[:-keep]:
        del line.versions[gone], line.times_ms[gone]
    world.settle("main", line.rows.newest, visible=line.rows.visible, most=0)


def clean(world: SqlWorld) -> None:
    """Files that nothing references."""
    world.run(f"CALL lake.sys.remove_orphan_files(table => 'db.t', older_than => '{EVER}')")
    world.left.clear()
    world.check_files()
    world.settle("main", world.main.rows.newest, visible=world.main.rows.visible, most=0)
    world.travel()


def compact(world: SqlWorld) -> None:
    """In part or in full."""
    branch, line = _line(world)
    full = world.rng.random() < 0.5
    if branch == "main":
        world.run(f"CALL lake.sys.compact(table => 'db.t', full => {str(full).lower()})")
    else:
        world.table(branch).compact(full=full)
    world.settle(branch, line.rows.newest, visible=line.rows.newest, most=2)


STEPS: Final[dict[Callable[[SqlWorld], None], int]] = {
    insert: 8, overwrite: 2, replace_where: 3, delete: 5, update: 5, merge: 6, truncate: 1, alter: 5, replace_table: 1,
    tag: 2, branch: 2, rollback: 2, expire: 1, clean: 1, compact: 3,
}  # fmt: skip
"""Steps, and how often they come."""


def run_program(world: SqlWorld, step_count: int) -> None:
    """Run random steps, and compare all versions from time to time and at the end."""
    insert(world)
    steps, weights = list(STEPS), list(STEPS.values())
    for number in range(step_count):
        step = world.rng.choices(steps, weights)[0]
        world.counts[step.__name__] += 1
        step(world)
        if number % 5 == 4:
            world.travel()
    world.travel()
