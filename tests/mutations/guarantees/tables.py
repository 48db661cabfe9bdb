"""Guarantees of commits, rows, compactions and deletion vectors of tables: what would lose, hide or invent rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import NotFound
from lakebed.objects.port import ObjectStore
from lakebed.server.paimon import catalog as paimon_catalog
from lakebed.table.branch import discard, travel
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.snapshots import SnapshotLog
from lakebed.table.changes import change_units, incremental, stream
from lakebed.table.codec import comparable, manifest, roaring
from lakebed.table.codec.manifest import DecodedList
from lakebed.table.commit import commit, conflicts, index_after, late_rows, prepared, presence, vector_update
from lakebed.table.compaction import compact, compact_plan, lookup
from lakebed.table.engines import aggregation, field_options, first_row, functions, lists, partial_update, sequence
from lakebed.table.engines.merge import encode_keys
from lakebed.table.model import types
from lakebed.table.model.model import Split
from lakebed.table.read import row_diff, scan_pruning, vectors
from lakebed.table.read.scan import Scan
from lakebed.table.rows import rows, update
from lakebed.table.schema import conform
from lakebed.table.schema.schema_log import SchemaLog
from lakebed.table.write import write, write_settings
from mutations.defects import (
    always,
    answer,
    change_arguments,
    forget,
    never,
    pass_on,
    raise_nothing,
    replace,
    returns,
    see,
    set_value,
    skip,
)
from mutations.guarantee import Guarantee


def _with_one_zero(encode: Callable[..., Any], runs: Sequence[Sequence[pa.Array]]) -> Any:
    """Keys as Python compares them, for which -0.0 is 0.0."""
    return encode([[pc.add(it, 0.0) if pa.types.is_floating(it.type) else it for it in columns] for columns in runs])


def commit_as_own(commit_changes: Callable[..., Any], branch: TableBranch, changes: Any, **keywords: Any) -> Any:
    """Take the files of a caller for those of the commit alone."""
    return commit_changes(branch, changes, **{**keywords, "own_files": commit.OwnFiles(changes)})


GUARANTEES = [
    # ---- commits that race
    Guarantee(
        "A write that others overtook is newer than what was there before it, whatever was compacted meanwhile.",
        returns(late_rows.number_after, None),
        "behaviour/table/test_late_rows.py::test_a_write_that_a_compaction_under_way_does_not_see",
    ),
    Guarantee(
        "A batch that others overtook is the newest for all of its keys, and what `changes` tells of it is so.",
        returns(late_rows.number_after, None),
        "behaviour/table/test_late_rows.py::test_the_row_that_is_committed_last_is_the_newest",
    ),
    Guarantee(
        "A delete that no merge could take back is refused, so that the table stays readable.",
        returns(partial_update.PartialUpdate.check_retracts, None),
        "unit/table/test_engines.py::test_a_delete_that_no_merge_could_take_back_is_not_written",
    ),
    Guarantee(
        "A commit that was interrupted (Ctrl-C) behind its snapshot keeps its files.",
        see(rows.commit_or_discard, NotFound, BaseException),
        "behaviour/table/test_interrupts.py::test_a_commit_that_is_interrupted_behind_its_snapshot_keeps_its_files",
    ),
    Guarantee(
        "So it does after an answer that did not come: its snapshot may be there.",
        forget(commit._Commit.run, lambda it: it.may_be_named),
        "behaviour/table/test_interrupts.py::test_a_commit_that_is_interrupted_behind_its_snapshot_keeps_its_files",
    ),
    Guarantee(
        "A live file that is added again is there once.",
        answer(manifest.live_after, np.flatnonzero, lambda original, named: original(named)[:0]),
        "unit/table/test_manifest.py::test_a_live_file_that_is_added_again_is_there_once",
    ),
    Guarantee(
        "A snapshot that another client prepared is committed only on the files of the newest one.",
        raise_nothing(prepared._check_base),
        "behaviour/table/test_prepared.py::test_a_base_with_other_files_is_refused",
    ),
    Guarantee(
        "A snapshot that another client prepared on one behind expired numbers fits, also where the hint is behind.",
        replace(SnapshotLog.latest, lambda original, self, *, exact=True: original(self, exact=False)),
        "behaviour/table/test_prepared.py::test_a_base_behind_a_gap_is_met",
    ),
    Guarantee(
        "A commit that was made is answered so, also by a server that has not seen it and where it fits no more.",
        returns(prepared._find_committed, None),
        "behaviour/table/test_prepared.py::test_a_server_with_an_old_view_answers_as_the_one_that_committed[schema]",
    ),
    Guarantee(
        "A stream of another client commits no row twice when it starts again and its last snapshot has expired.",
        returns(prepared._is_repeated, value=False),
        "behaviour/table/test_prepared.py::test_a_stream_that_starts_again_commits_once[True]",
    ),
    Guarantee(
        "A stream of another client that was set back, and uses identifiers again, loses no commit.",
        returns(prepared._is_repeated, value=True),
        "behaviour/table/test_prepared.py::test_a_stream_that_is_set_back_loses_no_commit[3]",
    ),
    Guarantee(
        "Clients of a catalog expire nothing, since they do not know what a rollback or a branch needs.",
        set_value(paimon_catalog, lambda it: it._FOR_CLIENTS, {}),
        "behaviour/server/test_paimon.py::test_clients_are_told_to_expire_nothing",
    ),
    Guarantee(
        "A server that keeps a table open notices that another process dropped it.",
        raise_nothing(SchemaLog.confirm),
        "behaviour/server/test_paimon.py::test_a_table_that_another_process_drops_is_gone_here_too",
    ),
    Guarantee(
        "A list of manifests has what its file says, and not what was read of the list before it.",
        replace(
            manifest.decode_extended_list,
            lambda original, body, *, path, parts: (
                DecodedList(tuple(meta for part in parts for meta in part.metas), parts[0].content)
                if parts
                else original(body, path=path, parts=parts)
            ),
        ),
        "unit/table/test_manifest.py::test_a_list_that_repeats_others",
    ),
    Guarantee(
        "A snapshot that another client prepared in a branch, whose files a reset took, is not committed.",
        returns(presence.is_taken_back, False),
        "behaviour/server/test_paimon_branches.py::test_a_commit_whose_files_a_reset_took_before_it_is_not_made",
    ),
    Guarantee(
        "A long write to a table in a branch that is reset meanwhile is not called committed.",
        returns(presence.is_taken_back, False),
        "behaviour/repo/test_facade.py::test_a_long_write_to_a_table_whose_branch_is_reset_is_not_committed[memory-reset]",
    ),
    Guarantee(
        "Values of a client that has not seen a reset of its branch are not committed under the columns made since.",
        skip(prepared._complete, prepared.check_columns),
        "behaviour/table/test_prepared.py::test_rows_under_columns_that_a_reset_took_back_are_refused[keys0-before0-after0]",
    ),
    Guarantee(
        "A stream does not read nulls for a column that a reset took back, when another one has the schema's id.",
        raise_nothing(stream.TableStream._check_table),
        "behaviour/table/test_stream.py::test_a_stream_whose_columns_a_reset_took_back_says_so[another column]",
    ),
    Guarantee(
        "A version that a client with an old view committed shows the values of columns that were added before it.",
        replace(travel.find_schema_id, lambda original, branch, snapshot: snapshot.schema_id),
        "behaviour/table/test_travel.py::test_a_version_of_a_client_with_an_old_view_has_the_columns_of_its_rows[False]",
    ),
    Guarantee(
        "A commit in a branch that is reset just before its snapshot is put is withdrawn, and not called committed.",
        returns(commit.confirm_kept, None),
        "behaviour/repo/test_facade.py::test_a_reset_between_the_look_for_files_and_the_commit_leaves_no_snapshot[memory]",
    ),
    Guarantee(
        "A commit by others takes no snapshot of a table whose files a reset took just before it was put.",
        returns(commit._Commit._required, []),
        "behaviour/repo/test_decided_writes.py::test_a_commit_by_others_during_a_reset_of_a_table_takes_no_snapshot_"
        "without_its_files[in the append]",
    ),
    Guarantee(
        "A change without data files, whose manifests a reset took, does not leave a table that cannot be read.",
        returns(commit._Commit._forget_manifests, None),
        "behaviour/repo/test_facade.py::test_a_change_whose_manifests_a_reset_took_is_made_again[memory-delete]",
    ),
    Guarantee(
        "A snapshot that another client prepared is withdrawn when a reset took its files just before the put.",
        returns(prepared.confirm_kept, None),
        "behaviour/repo/test_facade.py::test_a_prepared_commit_whose_files_a_reset_takes_at_last_leaves_no_snapshot[memory]",
    ),
    Guarantee(
        "A snapshot that another client prepared brings no deleted row back.",
        raise_nothing(prepared._check_vectors),
        "behaviour/table/test_prepared.py::test_deleted_rows_stay_deleted",
    ),
    Guarantee(
        "A compaction that another client prepared brings no deleted row back.",
        raise_nothing(prepared._check_compaction),
        "behaviour/table/test_prepared.py::test_a_compaction_brings_no_deleted_row_back",
    ),
    Guarantee(
        "A snapshot that another client prepared keeps the index of dynamic buckets, so that no key gets two buckets.",
        raise_nothing(prepared._check_index_is_whole),
        "behaviour/table/test_prepared.py::test_the_index_of_keys_is_not_lost",
    ),
    Guarantee(
        "What a snapshot names is durable before the snapshot is put.",
        skip(ObjectStore.put_each, ObjectStore.sync),
        "behaviour/table/test_commit.py::test_what_a_snapshot_names_is_durable_before_it",
    ),
    Guarantee(
        "A snapshot that another client prepared makes no file of another place a part of the table.",
        raise_nothing(prepared._check_names),
        "behaviour/table/test_prepared.py::test_files_outside_of_the_table_are_refused",
    ),
    Guarantee(
        "A rewrite whose race was lost to a snapshot that expired since is checked against what is live.",
        replace(
            commit._Commit._deltas_between,
            lambda original, self, before, head: [
                (snapshot, self.branch.manifests.delta_entries(snapshot))
                for snapshot in map(self.branch.snapshots.find, range(before.id + 1, head.id + 1))
                if snapshot is not None
            ],
        ),
        "behaviour/table/test_foreign_rollback.py::test_a_rewrite_whose_race_was_lost_to_an_expired_snapshot_is_checked",
    ),
    Guarantee(
        "A change planned on a snapshot is checked again when another client used its id again.",
        never(commit._Commit._deltas_between, lambda it: it.find),
        "behaviour/table/test_foreign_rollback.py"
        "::test_a_change_made_before_a_rollback_does_not_fit_the_same_id_of_another_line",
    ),
    Guarantee(
        "A delete by predicate asks again after a lost race: rows that no longer match stay.",
        returns(commit._Commit._check_basis, None),
        "behaviour/table/test_deletes_that_lose_races.py::test_a_row_that_no_longer_matches_stays",
    ),
    Guarantee(
        "A verb that finds its commit made already deletes the files that it wrote again.",
        skip(commit._Commit.run, discard.discard_changes),
        "behaviour/table/test_lost_replies.py::test_a_repeated_commit_leaves_no_file_of_its_own",
    ),
    Guarantee(
        "Files of a commit that was tried are never deleted by it.",
        always(commit._Commit.run, lambda it: it.tries),
        "behaviour/table/test_lost_replies.py::test_files_of_a_commit_that_was_tried_are_left_alone",
    ),
    Guarantee(
        "Files that a caller wrote are not deleted when their commit is repeated: they may be those of the first.",
        replace(rows.commit_changes, commit_as_own),
        "behaviour/table/test_lost_replies.py::test_files_that_the_caller_wrote_stay_when_their_commit_is_repeated",
    ),
    Guarantee(
        "A commit on a snapshot that a rollback deleted meanwhile is made again on the newest one.",
        never(commit._Commit.run, NotFound),
        "behaviour/table/test_deletion_vectors.py::test_a_delete_that_loses_a_race",
    ),
    Guarantee(
        "A commit keeps the list of its changelog after a lost race.",
        replace(
            commit._Commit._discard,
            lambda original, self, *, keep=frozenset(): original(
                self, keep=frozenset(keep) - (self.changelog.paths if self.changelog else frozenset())
            ),
        ),
        "behaviour/table/test_changelog.py::test_rows_are_logged_as_they_are_written",
    ),
    Guarantee(
        "What a change that was not committed logged is deleted.",
        see(discard.paths_written, lambda it: it.changelog, ()),
        "behaviour/table/test_changelog.py::test_a_compaction_that_loses_deletes_its_changelog",
    ),
    Guarantee(
        "An update replaces the rows of the version that it read.",
        pass_on(update._changes, rows.without_matching, basis=None),
        "behaviour/table/test_update.py::test_an_update_that_loses_a_race_is_repeated[append]",
    ),
    Guarantee(
        "An update of keys is repeated when another writer changed rows meanwhile.",
        pass_on(update.update, rows.commit_or_discard, basis=None),
        "behaviour/table/test_update.py::test_an_update_that_loses_a_race_is_repeated[keyed]",
    ),
    # ---- old handles
    Guarantee(
        "A snapshot has the newest schema's id, whatever its handle has seen, and so do its tags.",
        answer(commit._Commit._look, TableBranch.refresh, lambda refresh: refresh.__self__.schema),
        "behaviour/table/test_stale_handles.py::test_a_column_that_is_added_during_a_compaction_is_kept_and_shown",
    ),
    Guarantee(
        "A delete by an old handle works by the newest columns.",
        answer(rows._delete_where, TableBranch.look, lambda look: look.__self__.detach()),
        (
            "behaviour/table/test_stale_handles.py::test_a_dropped_column_is_refused_by_old_handles_too",
            "behaviour/table/test_stale_handles.py::test_an_old_name_that_is_another_column_now_is_that_column",
        ),
    ),
    Guarantee(
        "An update by an old handle writes the columns that it has not seen.",
        answer(update.update, TableBranch.look, lambda look: look.__self__.detach()),
        "behaviour/table/test_stale_handles.py::test_versions_and_tags_have_the_columns_of_their_rows",
    ),
    Guarantee(
        "Rows without a column that was added meanwhile do not erase it in an upsert.",
        change_arguments(write_settings.writes_alike, upserts=False),
        "behaviour/table/test_stale_handles.py::test_rows_without_a_column_do_not_erase_it_in_an_upsert",
    ),
    Guarantee(
        "Rows that were written before an option asked for a changelog are not committed without one.",
        returns(write_settings._options_of_writes, None),
        "behaviour/table/test_stale_handles.py::test_rows_that_were_not_logged_are_refused_where_they_must_be",
    ),
    Guarantee(
        "Two compactions that share a key cannot both win.",
        returns(conflicts._check_keys_apart, None),
        "unit/table/test_commit.py::test_levels_above_zero_may_not_overlap",
    ),
    Guarantee(
        "Keys with both zeros are apart by the order of their rows, so that their table can be compacted.",
        answer(conflicts._check_keys_apart, encode_keys, _with_one_zero),
        "behaviour/table/test_data_compaction.py::test_keys_of_any_value_are_compacted[double]",
    ),
    Guarantee(
        "A field of an added column has an id that no other field of the table has, so none shows another's values.",
        replace(types.without_field_ids, lambda original, parsed: parsed),
        "behaviour/server/test_paimon.py::test_fields_of_an_added_column_have_ids_of_their_own",
    ),
    Guarantee(
        "Categories of a frame of polars, and texts that a filter has to take, are written.",
        returns(conform._has_views, False),
        "unit/table/test_conform.py::test_dictionaries_of_views_are_decoded[string_view]",
    ),
    Guarantee(
        "A null inside of a value whose type has none there is refused before a file is written.",
        raise_nothing(conform._refuse_nulls_inside),
        "unit/table/test_conform.py::test_a_null_inside_of_a_value_is_refused_where_the_type_has_none",
    ),
    Guarantee(
        "A rewrite under an older schema than that of the files it read is refused.",
        answer(conflicts.check_schemas, max, lambda max, values: 0),
        "behaviour/table/test_stale_handles.py::test_a_rewrite_does_not_go_back_behind_the_columns_that_it_read",
    ),
    Guarantee(
        "A thread that looks for the newest schema does not move it in the middle of another one's verb.",
        answer(TableBranch.detach, SchemaLog.detach, lambda detach: detach.__self__),
        "behaviour/table/test_stale_handles.py::test_threads_that_share_a_handle_do_not_move_each_others_schema",
    ),
    Guarantee(
        "A full compaction that moves a file of an older schema logs it.",
        see(compact._read_plan, lambda it: it.moved, ()),
        "behaviour/table/test_stale_handles.py::test_a_moved_file_of_an_older_schema_is_logged",
    ),
    Guarantee(
        "A commit whose table is dropped while it is made is refused, and what it put is taken back.",
        returns(SchemaLog.confirm, None),
        "behaviour/table/test_drops_during_verbs.py::test_a_verb_on_a_table_that_is_dropped_meanwhile[append]",
    ),
    Guarantee(
        "An old handle of a table that was dropped and created again takes the new one's columns.",
        never(SchemaLog.latest, lambda it: it._object),
        "behaviour/table/test_stale_handles.py::"
        "test_a_table_that_was_created_again_is_the_new_one_for_old_handles[False]",
    ),
    Guarantee(
        "An old handle of a table that was dropped and created again takes no earlier columns of the old one.",
        skip(SchemaLog.latest, SchemaLog._forget_replaced),
        "behaviour/table/test_stale_handles.py::test_a_table_that_was_created_again_is_the_new_one_for_old_handles[True]",
    ),
    # ---- merges of rows
    Guarantee(
        "A partial compaction merges deletes with all older rows of their keys.",
        returns(compact_plan._needs_oldest, False),
        "unit/table/test_engines.py::test_a_delete_in_a_partial_compaction_meets_all_older_rows",
    ),
    Guarantee(
        "A sum that its column cannot hold is an error.",
        raise_nothing(functions._whole_sums),
        "unit/table/test_engines.py::test_a_sum_that_is_too_large",
    ),
    Guarantee(
        "A union of bitmaps has the numbers of every row of its key.",
        replace(roaring.unite, lambda original, bodies: bodies[-1]),
        "unit/table/test_engines.py::test_bitmaps_are_united",
    ),
    Guarantee(
        "Of rows in arrays the newest with a nested key stays, and a delete of it removes the row.",
        change_arguments(lists.nested_update, nested_key=("k",)),
        "unit/table/test_engines.py::test_rows_in_arrays_are_updated_by_their_key",
    ),
    Guarantee(
        "A table whose options limit or order rows in arrays is refused, and not merged without them.",
        raise_nothing(field_options._parse_nested_key),
        "unit/table/test_engines.py::test_options_of_rows_in_arrays",
    ),
    Guarantee(
        "Products of decimals are rounded in the order of rows, whatever was compacted.",
        never(aggregation.Aggregation.merges_apart, lambda it: it.rounds),
        "unit/table/test_engines.py::test_products_of_decimals_are_rounded_one_by_one",
    ),
    Guarantee(
        "A compaction of a first-row table takes every level: clients that read levels without a merge see a key once.",
        set_value(first_row.FirstRow, lambda it: it.keeps_levels_apart, False),
        "unit/table/test_engines.py::test_a_key_of_a_first_row_table_is_in_one_level",
    ),
    Guarantee(
        "A row that is older than the delete of its key does not return after a full compaction.",
        always(partial_update.PartialUpdate.drops_deletes, lambda it: it.order),
        "unit/table/test_engines.py::test_a_late_row_does_not_return_after_a_delete",
    ),
    Guarantee(
        "Deletes of a table with sequence.field survive a full compaction.",
        see(compact_plan._Bucket.tasks, lambda it: it.drops_deletes, True),
        "behaviour/table/test_sequence_field.py::test_a_delete_is_ordered_as_rows_are",
    ),
    Guarantee(
        "Within one batch the greatest sequence wins.",
        see(write.TableWriter._group_keys, lambda it: it.order, None),
        "behaviour/table/test_sequence_field.py::test_within_one_batch",
    ),
    Guarantee(
        "A delete by predicate has the sequence of the row it found.",
        returns(sequence.sequence_order, None),
        "behaviour/table/test_sequence_field.py::test_a_delete_by_predicate_takes_the_rows_own_sequence",
    ),
    # ---- deletion vectors
    Guarantee(
        "A damaged vector is an error.",
        never(vectors.decode_vector, zlib.crc32),
        "behaviour/table/test_deletion_vectors.py::test_vectors_of_64_bits_and_damage",
    ),
    Guarantee(
        "Rows that vectors delete are not counted.",
        answer(Scan._count, vectors.count_deleted, lambda original, store, split: 0),
        "behaviour/table/test_deletion_vectors.py::test_rows_are_marked_and_no_file_is_written_again",
    ),
    Guarantee(
        "Files with vectors are never read as plain Parquet.",
        see(Split.is_whole, lambda it: it.vectors, ()),
        "behaviour/table/test_deletion_vectors.py::test_every_way_of_reading",
    ),
    Guarantee(
        "A change whose rows were read before another writer deleted some of them is refused.",
        raise_nothing(vector_update.check_vectors),
        "behaviour/table/test_deletion_vectors.py::test_a_compaction_that_loses_a_race",
    ),
    Guarantee(
        "Rows of a file that another writer replaced are not marked.",
        raise_nothing(vector_update.check_live),
        "behaviour/table/test_deletion_vectors.py::test_a_delete_that_loses_a_race",
    ),
    Guarantee(
        "A vector joins the rows that were deleted before with those that are deleted now.",
        answer(vector_update._join_positions, np.union1d, lambda original, one, other: one),
        "behaviour/table/test_deletion_vectors.py::test_index_files_live_as_long_as_a_version",
    ),
    Guarantee(
        "A compaction applies the vectors of the files that it rewrites.",
        answer(
            compact_plan.plan_compaction,
            compact_plan._with_files,
            lambda original, split, files, _: original(split, files, {}),
        ),
        "behaviour/table/test_deletion_vectors.py::test_a_crash_at_any_call",
        is_long=True,
    ),
    Guarantee(
        "Two compactions do not mark the rows of one file unseen by each other.",
        returns(commit._Commit._check_vectors, None),
        "behaviour/table/test_deletion_vectors.py::test_a_compaction_that_loses_a_race",
    ),
    Guarantee(
        "A change fits the vectors that it states to have read, not those of its basis.",
        see(vector_update.check_vectors, lambda it: it.applied, {}),
        "unit/table/test_vector_update.py::test_a_change_fits_the_vectors_that_it_was_made_with",
    ),
    Guarantee(
        "A vector in a large index file is joined with the rows that are deleted now.",
        never(vector_update.vector_update, lambda it: it.data_file),
        "unit/table/test_vector_update.py::test_no_deleted_row_returns",
    ),
    Guarantee(
        "A compaction marks the older row of every key that it takes up.",
        skip(lookup.Lookup._merge_rows, lookup.Lookup._note),
        "behaviour/table/test_lookup.py::test_rows_are_visible_after_a_compaction_that_rewrites_no_older_file",
    ),
    Guarantee(
        "An older file of which every row is marked leaves the table.",
        never(lookup.Lookup.marks, lambda it: it.row_count),
        "behaviour/table/test_lookup.py::test_a_file_without_a_row_that_is_left_ends",
    ),
    Guarantee(
        "An older file of which the last rows are marked leaves the table, whenever the others were.",
        answer(lookup.Lookup.marks, vectors.count_deleted, lambda original, store, split: 0),
        "behaviour/table/test_lookup.py::test_a_file_that_loses_its_last_rows_later_ends",
    ),
    Guarantee(
        "A new file with keys that older files may have is not moved without a look-up.",
        answer(
            compact_plan._Bucket._groups, compact_plan._sharing_keys, lambda original, *files, schema: (set(), set())
        ),
        "behaviour/table/test_lookup.py::test_new_keys_of_dynamic_buckets_keep_the_vectors",
    ),
    Guarantee(
        "Readers of a primary-key table with deletion vectors leave out rows that no compaction has seen.",
        see(Scan._visible, lambda it: it._skips_new, False),
        "behaviour/table/test_lookup.py::test_rows_are_visible_after_a_compaction_that_rewrites_no_older_file",
    ),
    Guarantee(
        "A commit of keys in dynamic buckets keeps the deletion vectors.",
        answer(
            index_after.index_after,
            index_after._vectors_after,
            lambda original, *args, **kwargs: original(*args, **kwargs) or vector_update.VectorUpdate((), ()),
        ),
        "behaviour/table/test_lookup.py::test_new_keys_of_dynamic_buckets_keep_the_vectors",
    ),
    # ---- streams of changes
    Guarantee(
        "A stream whose next snapshot has expired ends, and does not leave it out.",
        replace(
            stream.TableStream._steps,
            lambda original, self, start, until, **facts: original(
                self, msgspec.structs.replace(start, snapshot=self._branch.snapshots.ids()[0] - 1), until, **facts
            ),
        ),
        "behaviour/table/test_stream.py::test_a_stream_that_would_leave_out_rows_ends_with_a_sentence",
    ),
    Guarantee(
        "A stream that has read nothing yet ends when the first snapshots have expired, and does not leave them out.",
        replace(
            stream.TableStream._steps,
            lambda original, self, start, until, **facts: original(
                self,
                start
                if start.snapshot
                else msgspec.structs.replace(start, snapshot=self._branch.snapshots.ids()[0] - 1),
                until,
                **facts,
            ),
        ),
        "behaviour/table/test_stream.py::test_a_stream_that_began_before_the_first_snapshot_misses_none_that_expired",
    ),
    Guarantee(
        "A stream that begins with an empty version reads what is written before its first batch.",
        always(stream.TableStream.plan, lambda it: it.num_rows),
        "behaviour/table/test_stream.py::test_a_stream_that_begins_with_an_empty_version_misses_nothing",
    ),
    Guarantee(
        "Rows of a key that were written with numbers that begin again hide none that the table has.",
        answer(change_units.Written.rows, change_units._newest_of, lambda original, written, plan: iter(written[-1])),
        "behaviour/table/test_stream.py::test_numbers_that_begin_again_after_a_compaction_hide_no_row",
    ),
    Guarantee(
        "An update does not cut off a part of a value without a word.",
        returns(update._refuse_loss, None),
        "behaviour/table/test_update.py::test_a_value_of_which_a_part_would_be_lost_is_refused",
    ),
    Guarantee(
        "A key that moved to another dynamic bucket is one change, and not one that goes and one that comes.",
        never(row_diff.diff_buckets, row_diff.is_dynamic),
        "behaviour/table/test_stream.py::test_a_key_that_moved_to_another_dynamic_bucket_is_one_row",
    ),
    Guarantee(
        "A row of which a part of a nested column changed is a changed one.",
        replace(comparable._encode_lists, lambda encode, present, kind: pa.array([b""] * len(present), pa.binary())),
        "unit/table/test_comparable.py::test_bytes_are_equal_when_values_are",
    ),
    Guarantee(
        "A stream reads the buckets between which a key may have moved together.",
        never(incremental.plan_replaced, incremental.is_dynamic),
        "behaviour/table/test_stream.py::test_a_key_that_moved_to_another_dynamic_bucket_is_one_row",
    ),
    Guarantee(
        "A table that was dropped and created again is another table.",
        never(stream.TableStream._check_table, lambda it: it.table),
        "behaviour/table/test_stream.py::test_a_stream_that_would_leave_out_rows_ends_with_a_sentence",
    ),
    Guarantee(
        "A deletion in a stream of rows is refused and not left out.",
        raise_nothing(stream.TableStream._check_deletes),
        "behaviour/table/test_stream.py::test_deletions_by_key_are_refused_skipped_or_read",
    ),
    Guarantee(
        "A stream that leaves deletions out loses no row that is appended after one.",
        returns(vector_update.has_deleted, True),
        "behaviour/table/test_stream.py::test_rows_that_are_appended_after_a_delete_are_read",
    ),
    Guarantee(
        "A consumer in the middle of a snapshot holds that snapshot.",
        see(stream.TableStream.hold, lambda it: it.units, None),
        "behaviour/table/test_stream.py::test_a_consumer_holds_what_is_not_read_yet",
    ),
    Guarantee(
        "A filter finds 0.0 and -0.0 alike, though they are in different buckets.",
        never(scan_pruning.prune_buckets, lambda it: it.is_floating),
        "behaviour/table/test_placement_options.py::test_both_zeros_are_found_in_any_bucket[primary-key-double]",
    ),
    Guarantee(
        "A commit of another client does not name files that a collection took while the client stood still.",
        returns(presence.find_gone_file, None),
        "behaviour/table/test_prepared.py::test_files_that_a_collection_may_have_taken_are_looked_for[10-1]",
    ),
    Guarantee(
        "Rows whose files a search of orphans took while they were written are not called committed.",
        raise_nothing(commit._Commit._check_presence),
        "behaviour/table/test_orphans.py::test_a_writer_that_took_longer_than_a_day_is_told_that_its_files_went[False-5]",
    ),
]
