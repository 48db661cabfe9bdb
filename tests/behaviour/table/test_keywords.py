"""Keywords that several verbs of a table share: a mistyped one is an error, and nothing happens."""

from __future__ import annotations

import copy
import inspect
import pickle
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import lakebed
from lakebed import kv, repo
from lakebed.errors import InvalidRequest
from lakebed.kv import DatabaseAdmin
from lakebed.lake.lake import Lake
from lakebed.objects import open_store
from lakebed.repo import Branch, Reference, Repositories, Repository
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table

ROWS = pa.table({"id": [1]})


@pytest.mark.parametrize(
    ("verb", "meant"),
    [
        (lambda table: table.append(ROWS, commit_usr="a"), "commit_user"),
        (lambda table: table.overwrite(ROWS, watermrk=1), "watermark"),
        (lambda table: table.delete("id = 1", propertys={}), "properties"),
        (lambda table: commit_changes(table.context, [], options={"commit_identifer": 1}), "commit_identifier"),
        (lambda table: table.read(colums="id"), "columns"),
        (lambda table: table.create_tag("a", snapshotid=1), "snapshot_id"),
        (lambda table: table.expire(retain_mx=1), "retain_max"),
    ],
    ids=["append", "overwrite", "delete", "commit", "read", "tag", "expire"],
)
def test_a_mistyped_keyword_is_an_error(verb: Callable[[Any], object], meant: str) -> None:
    """The error names the keyword that was meant; the store is as it was."""
    store = open_store(f"memory://{uuid.uuid4()}")
    table = Table.create(store, name="t", schema=ROWS.schema)
    table.append(ROWS)
    before = sorted(meta.path for meta in store.list(""))
    with pytest.raises(TypeError, match=f"is not a valid keyword argument.*Did you mean {meant}"):
        verb(table)
    assert sorted(meta.path for meta in store.list("")) == before


UNCHECKED = {
    "bool",
    "ByteRange | None",
    "Content",
    "DiffScope",
    "DiffScope | None",
    "Predicate | str",
    "Predicate | str | None",
    "Rows",
    "Rows | None",
    "Time | None",
    "Strategy | None",
    "CheckpointOptions | None",
    "DatabaseOptions | None",
    "pa.Schema | Sequence[DataField]",
    "str | Sequence[str]",
    "str | Sequence[str] | None",
    "str | pa.DataType",
    "timedelta",
    "timedelta | None",
}
"""Annotations of arguments that the verbs check themselves, with more than a type."""


def public_arguments() -> Iterator[tuple[type, str, str]]:
    """Each argument of a verb of a store with an annotation that is checked."""
    for cls in (Table, Lake, Repositories, Repository, Branch, Reference, DatabaseAdmin):
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            if name.startswith("_"):
                continue
            for parameter in list(inspect.signature(method).parameters.values())[1:]:
                if parameter.kind is not parameter.VAR_KEYWORD and parameter.annotation not in UNCHECKED:
                    yield cls, name, parameter.name


def refused(run: Callable[[], object], argument: str) -> None:
    with pytest.raises(InvalidRequest, match=f"The argument '{argument}' takes .* was given") as raised:
        run()
    assert raised.value.kind == "wrong_type"


@pytest.fixture
def lake() -> Lake:
    """A lake with a table ``t`` of one row."""
    lake = lakebed.open(f"memory://{uuid.uuid4()}")
    lake.create_table("t", ROWS.schema).append(ROWS)
    return lake


@pytest.fixture
def repositories(tmp_path: Path) -> Iterator[Repositories]:
    """The repositories of another lake, with ``models``."""
    with lakebed.open(tmp_path).open_repositories() as opened:
        opened.create("models")
        yield opened


def test_an_argument_of_a_wrong_type_is_one_sentence(lake: Lake, repositories: Repositories) -> None:
    """Every argument of every verb, by its name: nothing is asked of the store."""
    models = repositories.repository("models")
    of = {Table: lake.table("t"), Lake: lake, Repositories: repositories, Repository: models}
    of |= {Branch: models.branch(), Reference: models.ref("main"), DatabaseAdmin: lake.database("d")}
    before = sorted(meta.path for meta in lake.store.list(""))
    found = list(public_arguments())
    for cls, verb, argument in found:
        method = getattr(cls, verb)
        wrong = (
            [object()]
            if inspect.signature(method).parameters[argument].kind is inspect.Parameter.VAR_POSITIONAL
            else []
        )
        named = {} if wrong else {argument: object()}
        refused(partial(method, of[cls], *wrong, **named), argument)
    assert len(found) > 250
    assert sorted(meta.path for meta in lake.store.list("")) == before


@pytest.mark.parametrize(
    ("verb", "argument"),
    [
        (lambda lake: lake.create_table("u", ROWS.schema, options={4: "1"}), "options"),
        (lambda lake: lake.table("t").set_options(None), "options"),
        (lambda lake: lake.table("t").remove_options("bucket"), "names"),
        (lambda lake: lake.table("t").create_tag("a", lifetime_ms="1d"), "lifetime_ms"),
        (lambda lake: lake.table("t").create_tag("a", lifetime_ms=True), "lifetime_ms"),
        (lambda lake: lake.table("t").create_tag("a", snapshot_id="1d"), "snapshot_id"),
        (lambda lake: lake.table("t").create_tag("a", lifetime_ms=float("nan")), "lifetime_ms"),
        (lambda lake: lake.table("t").delete_tag([]), "names"),
        (lambda lake: lake.table("t").drop_column(()), "name"),
        (lambda lake: lake.table("t").append(ROWS, commit_identifier="1d"), "commit_identifier"),
        (lambda lake: lake.table("t").append(ROWS, commit_user=4), "commit_user"),
        (lambda lake: lake.table("t").append(ROWS, properties={4: "x"}), "properties"),
        (lambda lake: lake.table("t").append(ROWS, properties={"a": 4}), "properties"),
        (lambda lake: lake.table("t").append(ROWS, properties={"a": "\ud800"}), "properties"),
        # what the snapshot would hold then no other client could read
        (lambda lake: lake.table("t").append(ROWS, commit_identifier=2**63, commit_user="a"), "commit_identifier"),
        (lambda lake: lake.table("t").append(ROWS, watermark=-(2**63) - 1), "watermark"),
        (lambda lake: lake.table("t").append(ROWS, watermark=True), "watermark"),
        (lambda lake: lake.table("t").expire(retain_max=1.5), "retain_max"),
        (lambda lake: lake.why(None), "where"),
        (lambda lake: lake.collect(grace_ms="1d"), "grace_ms"),
        (lambda lake: lake.collect(progress=4), "progress"),
        (lambda lake: Table.create(lake.store, name="u", schema=ROWS.schema, options={4: "1"}), "options"),
        (lambda lake: Table.create(lake.url, name="u", schema=ROWS.schema), "store"),
        (lambda lake: Table.open(lake.store, name=4), "name"),
        (lambda lake: lake.table("t").to_duckdb("v", connection=4), "connection"),
        (lambda lake: lakebed.open(lake.url, storage_options=4), "storage_options"),
        (lambda lake: lakebed.open(4), "url"),
    ],
)
def test_examples_of_wrong_types(lake: Lake, verb: Callable[[Lake], object], argument: str) -> None:
    """The error names the argument and what was given; nothing is written."""
    before = sorted(meta.path for meta in lake.store.list(""))
    refused(lambda: verb(lake), argument)
    assert sorted(meta.path for meta in lake.store.list("")) == before


def test_numbers_of_numpy_and_times_with_fractions_are_numbers(lake: Lake) -> None:
    """An id from an array, and ``time.time() * 1000``."""
    table, four, later = lake.table("t"), cast("int", np.int64(4)), cast("int", 1.5)
    table.create_tag("a", snapshot_id=cast("int", np.int64(1)), lifetime_ms=cast("int", 86_400_000.5))
    assert table.tag("a").snapshot.id == 1
    snapshot = table.append(ROWS, commit_user="a", commit_identifier=four, watermark=four)
    assert (snapshot.commit_identifier, snapshot.watermark) == (4, 4)
    assert table.expire(older_than_ms=later).deleted_count == 0


def test_a_scan_stays_in_its_process(lake: Lake) -> None:
    """It cannot be pickled or copied, and says what to send instead; a table can."""
    for send in (pickle.dumps, copy.copy):
        with pytest.raises(InvalidRequest, match="send the table"):
            send(lake.table("t").scan())


@pytest.mark.parametrize("opened", [kv.open, kv.open_reader, repo.open, repo.open_all])
def test_what_is_no_url_is_one_sentence(opened: Callable[[Any], object]) -> None:
    """A number, and bytes, where a URL or a path is to be given."""
    for wrong in (4, b"/folder"):
        with pytest.raises(InvalidRequest, match=r"a text.* was given") as raised:
            opened(wrong)
        assert raised.value.kind == "wrong_type"


def test_a_view_in_duckdb_has_a_name_and_a_column(lake: Lake) -> None:
    """DuckDB refuses others, with errors of its own."""
    with pytest.raises(InvalidRequest, match="needs a column") as raised:
        lake.table("t").to_duckdb("v", columns=[])
    assert raised.value.kind == "invalid_view"
    with pytest.raises(InvalidRequest, match="needs a name"):
        lake.table("t").to_duckdb("")
    with pytest.raises(InvalidRequest, match="half a character") as raised:
        lake.table("t").to_duckdb("v\ud800")
    assert raised.value.kind == "invalid_view"


def test_what_fits_the_type_and_not_the_store_is_one_sentence(lake: Lake, repositories: Repositories) -> None:
    """Half a character in the beginning of names; a lifetime of more years than a date has."""
    models = repositories.repository("models")
    for names in (models.branches, models.tags):
        with pytest.raises(InvalidRequest, match="not valid Unicode"):
            list(names(prefix="\ud800"))
    with pytest.raises(InvalidRequest, match="lifetime is at most"):
        lake.database("d").pin("a", lifetime_ms=2**70)
