"""Whether a change can still be applied to the newest snapshot. Each check raises `Conflict` or returns nothing.

Owns: the two rules for a commit that lost a race, and the rule for a change that was made under an older schema than
the newest (`check_schemas`). The two rules: (1) every file that the change deletes is still live; (2) in a primary-key
table, files of one level > 0 in one bucket do not overlap in their keys. Columns are those of `manifest.ENTRY_SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import Conflict
from lakebed.table.codec.binary_row import decode_rows
from lakebed.table.codec.manifest import ADD, DELETE, IDENTITY
from lakebed.table.codec.row_codes import row_codes
from lakebed.table.engines.merge import encode_keys
from lakebed.table.model.model import BucketChange, TableSchema
from lakebed.table.write.write_settings import writes_alike

_BUCKET = ["partition", "bucket"]


def rests_on_state(entries: pa.Table) -> bool:
    """Whether a change can conflict at all: it deletes files, or adds files above level 0. Appends never do."""
    # For a few entries numpy takes a tenth of Arrow's time, and every commit calls this.
    return bool((entries["kind"].to_numpy() == DELETE).any() or (entries["level"].to_numpy() > 0).any())


def touches(entries: pa.Table, others: pa.Table) -> bool:
    """Whether another commit's delta may conflict with `entries`: it rests on state and shares a bucket with them."""
    return rests_on_state(others) and writes_same_buckets(entries, others)


def writes_same_buckets(entries: pa.Table, others: pa.Table) -> bool:
    """Whether another commit's delta may have changed rows in the buckets of `entries`."""
    if others.num_rows == 0 or entries.num_rows == 0:
        return False
    other_codes, own_codes = row_codes(_BUCKET, others, entries)
    return bool(np.isin(other_codes, own_codes).any())


def check_fits(entries: pa.Table, *, live: pa.Table, key_types: Sequence[str], snapshot_id: int) -> None:
    """Raise unless `entries` can be applied to the live files of a snapshot.

    Args:
        entries: the change, ADDs and DELETEs.
        live: live ADD entries of (at least) the buckets that the change touches.
        key_types: Paimon type texts of the trimmed primary key; empty for append tables.
        snapshot_id: id of the snapshot that `live` is from, for the message.

    Raises `Conflict`: with kind ``file_gone`` or ``keys_overlap``.
    """
    deletes = entries.filter(pc.equal(entries["kind"], DELETE)).select(list(IDENTITY))
    delete_codes, live_codes = row_codes(IDENTITY, deletes, live)
    missing_entries = deletes.filter(pa.array(~np.isin(delete_codes, live_codes)))
    if missing_entries.num_rows:
        name = missing_entries["file_name"][0].as_py()
        raise Conflict(
            f"{missing_entries.num_rows} of {deletes.num_rows} files that this change replaces are no longer in "
            f"snapshot {snapshot_id} ({name} is one): another writer replaced them. Read the table again and redo the "
            "change.",
            kind="file_gone",
            file=name,
            snapshot=snapshot_id,
        )
    if key_types:
        _check_keys_apart(entries, live_entries=live, deletes=deletes, key_types=key_types, snapshot_id=snapshot_id)


def check_schemas(
    changes: Sequence[BucketChange],
    *,
    newest: TableSchema,
    schema_of: Callable[[int], TableSchema],
    upserts: bool,
    least: int = 0,
    wanted: int | None = None,
) -> None:
    """Raise unless what a change wrote under older schemas is right under the newest one.

    Readers read files of older schemas by field id, with null where a column is new. So a change may add such files,
    except where a null would replace a stored value, or where the files are not what the options ask for. A change must
    not be made from rows of a later schema than its own: it would lose their columns.

    Args:
        changes: with their files, which name the schemas that they were written under.
        newest: the table's newest schema.
        schema_of: loads a schema.
        upserts: with a primary key, what is written replaces rows of the same keys.
        least: the schema of the version from whose rows the changes were made.
        wanted: the newest schema must have this id; None: any.

    Raises `Conflict`, with kind ``schema_changed``. Cost: 1 GET for each older schema that is not cached.
    """
    written_ids: set[int] = set()
    for change in changes:
        deleted_names = {file.file_name for file in change.deleted}
        added_names = {file.file_name for file in change.added}
        written_ids |= {
            file.schema_id for file in (*change.added, *change.changelog) if file.file_name not in deleted_names
        }
        least = max([least, *(file.schema_id for file in change.deleted if file.file_name not in added_names)])
    if wanted is not None and wanted != newest.id:
        raise _schema_changed(wanted, newest)
    check_written_schemas(written_ids, newest=newest, schema_of=schema_of, upserts=upserts, least=least)


def check_written_schemas(
    written: Collection[int],
    *,
    newest: TableSchema,
    schema_of: Callable[[int], TableSchema],
    upserts: bool,
    least: int,
) -> None:
    """As `check_schemas`, given the ids of the schemas that new files were written under.

    Args:
        least: the greatest schema of a version or a file from whose rows the new files were made.

    Raises `Conflict`, with kind ``schema_changed``.
    """
    for schema_id in sorted(set(written) - {newest.id}):
        if (
            schema_id < least
            or schema_id > newest.id
            or not writes_alike(schema_of(schema_id), newest, upserts=upserts)
        ):
            raise _schema_changed(schema_id, newest)


def _schema_changed(made_under: int, newest: TableSchema) -> Conflict:
    return Conflict(
        f"The change was made under schema {made_under}, and the table has schema {newest.id}: another writer changed "
        "columns or options meanwhile. Nothing was changed: open the table again and redo the change.",
        kind="schema_changed",
        made_under=made_under,
        newest=newest.id,
    )


def _check_keys_apart(
    entries: pa.Table, *, live_entries: pa.Table, deletes: pa.Table, key_types: Sequence[str], snapshot_id: int
) -> None:
    added_entries = entries.filter(pc.and_(pc.equal(entries["kind"], ADD), pc.greater(entries["level"], 0)))
    if added_entries.num_rows == 0:
        return
    columns = [*IDENTITY, "min_key", "max_key"]
    level = ["partition", "bucket", "level"]
    added_entries = added_entries.select(columns)
    live_levels, added_levels = row_codes(level, live_entries, added_entries)
    live_files, deleted_files, added_files = row_codes(IDENTITY, live_entries, deletes, added_entries)
    is_near = np.isin(live_levels, added_levels) & ~np.isin(live_files, np.concatenate([deleted_files, added_files]))
    near_entries = live_entries.select(columns).filter(pa.array(is_near))
    ranges = pa.concat_tables([near_entries, added_entries], promote_options="default")
    # Compare in the order in which rows are merged: 0.0 is above -0.0, NaN is the greatest float, and dates may have
    # any year.
    least, greatest = encode_keys([decode_rows(ranges[name].combine_chunks(), key_types) for name in columns[-2:]])
    (groups,) = row_codes(level, ranges)
    order = np.lexsort((least, groups))
    is_same = groups[order][1:] == groups[order][:-1]
    overlaps = np.flatnonzero(is_same & (least[order][1:] <= greatest[order][:-1]))
    if len(overlaps):
        before, after = (int(row) for row in order[overlaps[0] : overlaps[0] + 2])
        first, second = (ranges["file_name"][row].as_py() for row in (before, after))
        raise Conflict(
            f"{first} and {second} would overlap in their keys at level {ranges['level'][after]} of bucket "
            f"{ranges['bucket'][after]} on top of snapshot {snapshot_id}: another compaction came first. Plan the "
            "compaction again.",
            kind="keys_overlap",
            files=[first, second],
            snapshot=snapshot_id,
        )
