"""Keywords that several verbs of a table share: a mistyped one is an error, and nothing happens."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lakebed.objects import open_store
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
