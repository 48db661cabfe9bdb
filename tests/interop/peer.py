"""The other clients' side of the interoperability tests; run by the interpreter of the peers' environment.

Reads one JSON request a line, answers one JSON line: ``{"answer": ...}`` or ``{"error": "..."}``. Rows travel as Arrow
IPC files named in the request. Clients: ``pypaimon`` (default path), ``pypaimon-native``, ``rust`` (SQL).
"""

import contextlib
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from pypaimon import CatalogFactory, Schema
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange
from pypaimon_rust.datafusion import SQLContext

NATIVE = {f"{verb}.enabled": "true" for verb in ("write.native", "commit.native", "read.native", "scan.native-plan")}


def load(path):
    """An Arrow IPC file as a table."""
    with pa.OSFile(path) as file:
        return pa.ipc.open_file(file).read_all()


def save(path, table):
    """A table as an Arrow IPC file."""
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def catalog(request):
    """Pypaimon's catalog of the warehouse, or of a server, as the request's options say."""
    return CatalogFactory.create({"warehouse": request["warehouse"], **request.get("catalog", {})})


def table(request):
    """The table asked for, with dynamic options."""
    options = dict(request.get("options") or {})
    if request.get("client") == "pypaimon-native":
        options |= NATIVE
    result = catalog(request).get_table(request["table"])
    return result.copy(options) if options else result


def create(request):
    """Create a table from the schema of an Arrow file."""
    made = catalog(request)
    if "`" not in request["table"]:  # the name of a branch, which is made elsewhere
        made.create_database(request["table"].split(".")[0], True)
    schema = Schema.from_pyarrow_schema(
        load(request["path"]).schema,
        primary_keys=request.get("primary_keys") or None,
        partition_keys=request.get("partition_keys") or None,
        options=request.get("options") or {},
    )
    made.create_table(request["table"], schema, False)


def write(request):
    """Write and commit rows; ``overwrite`` (a partition mapping, maybe empty) replaces."""
    builder = table(request).new_batch_write_builder()
    if request.get("overwrite") is not None:
        builder = builder.overwrite(request["overwrite"])
    writer, commit = builder.new_write(), builder.new_commit()
    writer.write_arrow(load(request["path"]))
    commit.commit(writer.prepare_commit())
    writer.close()
    commit.close()


def read(request):
    """Read a table (at a version given as dynamic options) into an Arrow file; the number of rows."""
    builder = table(request).new_read_builder()
    rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    save(request["path"], rows)
    return rows.num_rows


def sql(request):
    """A statement of the Rust client into an Arrow file; the number of rows."""
    context = SQLContext()
    context.register_catalog("paimon", {"warehouse": request["warehouse"]})
    batches = context.sql(request["statement"])
    rows = pa.Table.from_batches(batches) if batches else pa.table({})
    save(request["path"], rows)
    return rows.num_rows


def create_tag(request):
    """Tag a snapshot."""
    table(request).create_tag(request["name"], request.get("snapshot_id"))


def delete_tag(request):
    """Delete a tag."""
    return table(request).delete_tag(request["name"])


def list_tags(request):
    """Names of all tags."""
    return sorted(str(tag) for tag in table(request).list_tags())


def latest_snapshot_id(request):
    """Id of the newest snapshot."""
    return table(request).snapshot_manager().get_latest_snapshot().id


def rollback_to(request):
    """Roll back to a tag or snapshot id."""
    table(request).rollback_to(request["target"])


def add_column(request):
    """Add a nullable column."""
    catalog(request).alter_table(
        request["table"], [SchemaChange.add_column(request["name"], AtomicType(request["type"]))], False
    )


def rename_column(request):
    """Rename a column."""
    catalog(request).alter_table(
        request["table"], [SchemaChange.rename_column(request["name"], request["new_name"])], False
    )


def race(request):
    """Write one row each by many clients at once; for each its error, or None."""

    def run(number):
        try:
            rows = load(request["path"]).slice(number, 1)
            builder = table(request).new_batch_write_builder()
            writer, commit = builder.new_write(), builder.new_commit()
            writer.write_arrow(rows)
            messages = writer.prepare_commit()
            start.wait()
            commit.commit(messages)
            return None
        except Exception as error:  # the test decides what it means
            return f"{type(error).__name__}: {error}"

    start = threading.Barrier(request["count"])
    with ThreadPoolExecutor(request["count"]) as pool:
        return list(pool.map(run, range(request["count"])))


def create_branch(request):
    """Branch from a tag."""
    catalog(request).create_branch(request["table"], request["name"], request["tag"])


def rename_branch(request):
    """Rename a branch; the error when that is refused."""
    try:
        catalog(request).rename_branch(request["table"], request["name"], request["to"])
    except Exception as error:  # the test decides what it means
        return f"{type(error).__name__}: {error}"
    return None


VERBS = {
    verb.__name__: verb
    for verb in (
        create,
        write,
        read,
        sql,
        create_tag,
        delete_tag,
        list_tags,
        latest_snapshot_id,
        rollback_to,
        add_column,
        rename_column,
        race,
        create_branch,
        rename_branch,
    )
}


def main():
    """Answer until standard input ends."""
    answers = sys.stdout
    for line in sys.stdin:
        request = json.loads(line)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                answer = {"answer": VERBS[request["verb"]](request)}
        except Exception as error:  # every failure of a peer is an answer: the test decides what it means
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
