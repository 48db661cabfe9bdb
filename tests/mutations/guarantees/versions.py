"""Guarantees of tags, branches, expiry and orphans of tables: no version that is kept loses a file."""

from __future__ import annotations

import re

from lakebed.lake import drop as lake_drop
from lakebed.lake import lake as lakes
from lakebed.objects import document
from lakebed.objects.boundary import Boundary
from lakebed.objects.numbered_log import NumberedLog
from lakebed.reclaim.sweep import Sweeper
from lakebed.server.iceberg.reference_objects import ReferenceObjects
from lakebed.table.branch import branch_folder, branches, earlier_commits, renames, tag_index, tags
from lakebed.table.branch.candidates import Role
from lakebed.table.branch.snapshots import SnapshotLog
from lakebed.table.changes import incremental
from lakebed.table.collect import deletion, expire, lineage, live_versions, orphans, reachability, recovery
from lakebed.table.commit import commit
from lakebed.table.iceberg import entries, file_ids
from lakebed.table.iceberg.file_ids import FileIds
from lakebed.table.iceberg.fold import Fold
from lakebed.table.iceberg.lines import Line
from lakebed.table.iceberg.published import PublishedTable
from lakebed.table.rows import rows
from lakebed.table.schema.schema_log import SchemaLog
from lakebed.table.versions import fast_forward, rollback
from mutations.defects import (
    always,
    answer,
    change_arguments,
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

RENAMES = "behaviour/table/test_branch_renames.py"

_listings = []


def list_every_second_time(original, branch):
    """Give what was listed before at every second call."""
    if _listings:
        return _listings.pop()
    _listings.append(original(branch))
    return _listings[0]


def clear_without_pin(original, main, name, *, pin):
    """Let the pin of a branch go before the branch is cleared."""
    main.tags.unpin_hidden(f"branch.{name}")
    return original(main, name, pin=pin)


_schemas = {}


def remember_schemas(original, line, schema_id):
    """Give the schema that a branch of the name had first."""
    key = line, schema_id
    if key not in _schemas:
        _schemas[key] = original(line, schema_id)
    return _schemas[key]


_bodies = {}


def make_by_name(original, objects, path, encode):
    """Give what was made first under a name."""
    body = _bodies.setdefault(path, encode())
    return original(objects, path, lambda: body)


def note_at_the_end(original, fold, metas):
    """Forget which manifests were taken when the next one cannot be read."""
    names = [*fold._names]
    try:
        original(fold, metas)
    except Exception:
        fold._names = names
        raise


def find_used_first(original, lines, older_than_ms):
    """Ask what is used before files are listed."""
    used = list(orphans.paths_in_use(lines))
    return orphans.search_of(orphans.list_files(lines[0], older_than_ms=older_than_ms), used)


GUARANTEES = [
    Guarantee(
        "A dry run of a collection says all that the collection deletes.",
        change_arguments(expire._without, tags=()),
        "behaviour/lake/test_lake.py::test_a_dry_collection_says_all_that_the_collection_deletes",
    ),
    Guarantee(
        "No lake is made in the folder of a table, whose collection would take its files.",
        returns(lakes._refuse_inside, None),
        "behaviour/lake/test_lake.py::test_no_lake_is_made_in_the_folder_of_a_table",
    ),
    Guarantee(
        "A table's collection leaves a lake that somebody put into its folder alone.",
        set_value(orphans, lambda it: it._OTHER_LAKE, re.compile("(?!)")),
        "behaviour/lake/test_lake.py::test_no_lake_is_made_in_the_folder_of_a_table",
    ),
    Guarantee(
        "A drop of a table does not take a store that somebody put into its folder.",
        returns(lake_drop.list_stores_inside, []),
        "behaviour/lake/test_lake.py::test_a_table_with_a_store_in_its_folder_is_not_dropped",
    ),
    Guarantee(
        "A database is known for a store by its lease.",
        set_value(lake_drop, lambda it: it._STORE_MARKERS, frozenset({"lakebed.json", "_repository.json"})),
        "behaviour/lake/test_lake.py::test_a_table_with_a_store_in_its_folder_is_not_dropped",
    ),
    # ---- expiry
    Guarantee(
        "A commit after a rollback of another client below the boundary ends.",
        answer(SnapshotLog.next_id, lambda it: it.free_from, lambda free_from: 0),
        "behaviour/table/test_foreign_rollback.py::test_an_append_after_a_rollback_below_the_boundary_ends",
    ),
    Guarantee(
        "An old handle commits behind the newest version of a table that was created again.",
        always(Boundary.newest, lambda it: it.listed_object),
        "property/test_numbered_log.py::test_a_boundary_goes_with_its_log[True]",
    ),
    Guarantee(
        "An append by an old handle replaces no rows of a table that was created again with a primary key.",
        skip(rows._write_rows, lambda it: it.check),
        "behaviour/table/test_stale_handles.py"
        "::test_a_table_that_was_created_again_with_another_key_is_written_as_what_it_is[False]",
    ),
    Guarantee(
        "Expiry keeps the snapshots that another client wrote below the marks.",
        never(lineage.withdraw_late, lineage.is_ours),
        "behaviour/table/test_foreign_rollback.py::test_expiry_keeps_what_another_client_made_newest",
    ),
    Guarantee(
        "The snapshot that lakebed committed on after a rollback of another client stays.",
        returns(lineage.newest_once, frozenset()),
        "behaviour/table/test_foreign_rollback.py::test_what_came_before_the_next_commit_stays_readable",
    ),
    Guarantee(
        "A deletion from before a rollback of another client is not judged by ids that were used again.",
        pass_on(deletion.carry_out, deletion.judge, is_lost=False),
        "behaviour/table/test_foreign_rollback.py"
        "::test_unfinished_work_from_before_a_rollback_is_finished_by_what_is_there[expire-6]",
    ),
    Guarantee(
        "An unfinished expiry does not hide snapshots that another client wrote under the same ids.",
        answer(deletion._hide_snapshots, deletion.fits, lambda original, *args: True),
        "behaviour/table/test_foreign_rollback.py"
        "::test_unfinished_work_from_before_a_rollback_is_finished_by_what_is_there[expire-5]",
    ),
    Guarantee(
        "The version to which a rollback goes keeps its files while another process expires it.",
        skip(rollback._roll_back, rollback._pin),
        "behaviour/table/test_tag_races.py::test_a_rollback_keeps_its_target_from_an_expiry_at_any_call[rollback_to]",
    ),
    Guarantee(
        "A rollback that is only from one version undoes none that became the newest while it was prepared.",
        pass_on(rollback._roll_back, rollback._derive, only_from=None),
        "behaviour/table/test_tag_races.py::test_a_rollback_only_from_a_version_undoes_nothing_that_came_meanwhile",
    ),
    Guarantee(
        "A load that a rollback took away is written again when it is repeated, and not called committed.",
        answer(commit._Commit._stage, earlier_commits.load_restored, lambda original, branch, target, head: head),
        "behaviour/table/test_rollback.py::test_what_was_rolled_back_is_not_taken_for_committed",
    ),
    Guarantee(
        "A rollback to a version of another client forgets no commit of a user that the version has.",
        answer(earlier_commits.load_restored, earlier_commits.is_ours, lambda original, snapshot: True),
        "behaviour/table/test_foreign_rollback.py"
        "::test_a_rollback_to_a_version_of_another_client_forgets_no_commit_that_it_has",
    ),
    Guarantee(
        "A snapshot to which another client rolls back while it is being hidden is put back.",
        answer(deletion._hide_snapshots, deletion.restore_newest, lambda original, *args: None),
        "behaviour/table/test_foreign_rollback.py::test_a_rollback_while_an_expiry_runs_keeps_its_target",
    ),
    Guarantee(
        "Snapshots that land after their ids had passed are withdrawn.",
        answer(recovery.recover, lineage.withdraw_late, lambda original, branch: []),
        "behaviour/table/test_expire.py::test_a_snapshot_that_lands_late_is_withdrawn",
    ),
    Guarantee(
        "A snapshot that lands late right below the oldest one is withdrawn.",
        answer(lineage.withdraw_late, lineage._count_lists, lambda original, *args: 2),
        "behaviour/table/test_expire.py::test_a_snapshot_that_lands_late_below_the_oldest_is_withdrawn",
    ),
    Guarantee(
        "A snapshot that the boundary names was acknowledged: it stays, whether or not one that is there follows it.",
        answer(lineage.withdraw_late, NumberedLog.create_outcome, lambda original, *args: "lost"),
        "behaviour/table/test_foreign_rollback.py::test_a_version_that_the_boundary_names_stays_when_the_one_above_it_is_gone",
    ),
    Guarantee(
        "A deletion hides a tag only while it is the file that was read.",
        answer(deletion._hide, deletion.is_unchanged, lambda original, *args: True),
        "behaviour/table/test_deletion_rules.py"
        "::test_a_tag_that_was_pointed_elsewhere_is_not_deleted_by_a_recovered_deletion",
    ),
    Guarantee(
        "What holds versions is collected until two collections are equal.",
        answer(live_versions.read_live_versions, live_versions._list, list_every_second_time),
        "behaviour/table/test_deletion_rules.py::test_holders_are_collected_until_two_collections_are_equal",
    ),
    Guarantee(
        "A recovered expiry hides nothing that a consumer claimed since.",
        answer(recovery._finish_expiry, recovery.expiry_limit, lambda original, branch: None),
        "behaviour/table/test_deletion_rules.py::test_a_recovered_expiry_honours_consumers",
    ),
    Guarantee(
        "It is noted below which id every snapshot has expired.",
        skip(deletion._hide_snapshots, deletion.note_expired_below),
        "behaviour/table/test_deletion_rules.py::test_the_boundary_of_expired_snapshots_is_noted_before_they_go",
    ),
    Guarantee(
        "A deletion that could not delete everything is finished later.",
        see(deletion.carry_out, lambda it: it.complete, True),
        "behaviour/table/test_deletion_rules.py::test_a_deletion_that_could_not_delete_everything_is_finished_later",
    ),
    Guarantee(
        "A tag whose lifetime is over by one clock that is ahead, and not by the store's, stays.",
        returns(expire.ms_ahead, 0),
        "behaviour/table/test_clock_jumps.py::test_a_process_whose_clock_is_ahead_ends_no_tag",
    ),
    Guarantee(
        "A snapshot that is old by one clock that is ahead, and not by the store's, does not expire.",
        answer(expire._count_expiring, expire.ms_ahead, lambda original, branch: 0),
        "behaviour/table/test_clock_jumps.py::test_a_process_whose_clock_is_ahead_expires_no_snapshot",
    ),
    # ---- orphans
    Guarantee(
        "A collection of a table whose clock is ahead takes no file of a writer that has not committed yet.",
        returns(expire.ms_ahead, 0),
        "behaviour/table/test_orphans.py::test_a_collection_whose_clock_is_ahead_takes_no_file_of_a_writer",
    ),
    Guarantee(
        "Changelogs and indexes of a version are no orphans.",
        set_value(reachability, lambda it: it.ROLES, (Role.DATA, Role.MANIFEST, Role.LIST)),
        "behaviour/table/test_orphans.py::test_changelogs_and_indexes_of_versions_are_in_use",
    ),
    Guarantee(
        "Orphan cleaning lists files before it asks what is used.",
        replace(orphans.find_unused, find_used_first),
        "behaviour/table/test_deletion_rules.py::test_orphan_cleaning_lists_before_it_asks_what_is_used",
    ),
    Guarantee(
        "Cleaning a table finishes the deletions of a branch without the files that it shares with main.",
        skip(reachability._keep_of_others, reachability._keep_forks),
        "behaviour/table/test_orphans.py::test_an_expiry_of_a_branch_that_was_cut_short_takes_nothing_of_main",
    ),
    Guarantee(
        "Cleaning a table looks up where a branch started before it finishes the branch's deletions.",
        answer(orphans.remove_orphan_files, map, lambda original, look_up, lines: lines),
        "behaviour/table/test_orphans.py::test_an_expiry_of_a_branch_that_was_cut_short_takes_nothing_of_main",
    ),
    # ---- tags and branches
    Guarantee(
        "A tag that was made while the clock was ahead ends.",
        never(expire._is_outlived, expire.is_future),
        "behaviour/table/test_clock_jumps.py::test_a_tag_made_while_the_clock_was_ahead_ends",
    ),
    Guarantee(
        "A damaged bit in the index of tags names no other version for a tag, whose files collectors keep.",
        never(tag_index._load_known, tag_index._head_of),
        "behaviour/table/test_tags.py::test_an_index_with_a_damaged_bit_names_no_other_version",
    ),
    Guarantee(
        "A tag is not made from a tag whose version is being deleted.",
        answer(tags.Tags._is_whole, tags.load_deletions, lambda original, *args: ()),
        "behaviour/table/test_deletion_rules.py::test_a_tag_is_not_made_from_a_tag_whose_deletion_is_under_way",
    ),
    Guarantee(
        "A tag is withdrawn where the files of its version were deleted before it was there.",
        returns(tags.Tags._is_whole, True),
        "behaviour/table/test_tag_deletion.py::test_a_tag_whose_files_were_deleted_is_no_source",
    ),
    Guarantee(
        "A branch is pinned until it is cleared.",
        answer(branches.delete_branch, branches.clear_branch, clear_without_pin),
        "behaviour/table/test_deletion_rules.py::test_a_branch_keeps_its_pin_until_it_is_cleared",
    ),
    Guarantee(
        "A deletion of a branch that sleeps takes nothing of a branch of its name that was made since.",
        returns(branch_folder.has_pin, True),
        "behaviour/table/test_branches.py::"
        "test_a_deleter_that_sleeps_between_two_batches_takes_nothing_of_a_branch_made_anew",
    ),
    # ---- renaming a branch
    Guarantee(
        "A commit that a rename of its branch took along is not called lost.",
        returns(renames._has_moved, False),
        f"{RENAMES}::test_a_branch_is_renamed_at_any_call_of_a_writer[commit]",
    ),
    Guarantee(
        "A commit to the old name that a rename left behind is not called committed.",
        returns(renames._has_moved, True),
        f"{RENAMES}::test_a_branch_is_renamed_at_any_call_of_a_writer[commit]",
    ),
    Guarantee(
        "A commit that began in another branch of the name is not committed to the new one.",
        returns(renames.find_branch_id, None),
        f"{RENAMES}::test_another_branch_of_the_old_name_gets_no_commit_of_the_first[True]",
    ),
    Guarantee(
        "A tag that is confirmed while its branch is renamed is in the renamed branch.",
        raise_nothing(SchemaLog.confirm_branch),
        f"{RENAMES}::test_a_tag_that_is_put_while_a_rename_is_under_way_is_confirmed_only_if_it_goes_along",
    ),
    Guarantee(
        "An expiry that has read the emptied folder of a renamed branch deletes no file.",
        skip(deletion.carry_out, deletion._confirm_branch),
        f"{RENAMES}::test_a_branch_is_renamed_at_any_call_of_a_writer[expire]",
    ),
    Guarantee(
        "A search of orphans that has read a branch under neither of its names is made again.",
        answer(orphans._search_all, orphans.branch_ids, lambda original, main: frozenset()),
        f"{RENAMES}::test_a_branch_is_renamed_at_any_call_of_a_collector_of_the_table[orphans-False]",
    ),
    Guarantee(
        "A branch that is created while another is renamed to its name is not overwritten.",
        returns(branches.take_name, None),
        f"{RENAMES}::test_another_verb_of_branches_comes_between[create new]",
    ),
    Guarantee(
        "Changes that lack the first snapshot after their start are refused.",
        raise_nothing(incremental.changes),
        "behaviour/table/test_travel.py::test_changes_need_every_snapshot_in_between",
    ),
    # ---- publishing a branch
    Guarantee(
        "Main is fast-forwarded only to a branch that started from its newest version.",
        answer(fast_forward.plan_fast_forward, fast_forward._is_same, lambda original, *args: True),
        "behaviour/table/test_fast_forward.py::test_main_that_has_moved_is_refused",
    ),
    Guarantee(
        "Publishing a branch loses no commit that main has of its own.",
        never(fast_forward._derive, fast_forward._is_same),
        "behaviour/table/test_fast_forward.py::test_a_writer_that_is_faster_wins[manifest/]",
    ),
    Guarantee(
        "A branch is not published over columns or options that main got since the fork.",
        skip(fast_forward.plan_fast_forward, fast_forward._check_schemas),
        "behaviour/table/test_fast_forward.py::test_main_has_a_schema_of_its_own[branch-as-it-was-column]",
    ),
    Guarantee(
        "A column that main gets while a branch is published keeps the branch from being published over it.",
        skip(fast_forward._derive, fast_forward._check_schemas),
        "behaviour/table/test_fast_forward.py::test_a_schema_of_main_that_is_faster[lakebed/published/]",
    ),
    Guarantee(
        "A branch does not delete what main has from it.",
        skip(fast_forward._publish, fast_forward._pin),
        "behaviour/table/test_fast_forward.py::test_neither_line_deletes_what_the_other_has[branch]",
    ),
    Guarantee(
        "A file that a rollback brought back behind the walk is kept, also when only a tag has it.",
        skip(reachability._keep_restored, reachability._keep_every),
        "behaviour/table/test_reachability.py::test_what_was_brought_back_behind_the_walk_is_kept",
    ),
    Guarantee(
        "Main does not delete what a published branch still has.",
        answer(reachability._keep_unpinned, reachability._list_published_marks, lambda original, branch: frozenset()),
        "behaviour/table/test_fast_forward.py::test_neither_line_deletes_what_the_other_has[main]",
    ),
    Guarantee(
        "A file that comes back into main by a publication is kept for the tags of its first stretch.",
        returns(fast_forward._may_return, False),
        "behaviour/table/test_fast_forward.py::test_files_that_come_back_are_kept_for_tags",
    ),
    Guarantee(
        "A file that comes back into main after a rollback of another client is kept for a tag of its first stretch.",
        answer(fast_forward._may_return, any, lambda original, marks: False),
        "behaviour/table/test_fast_forward.py::test_a_tag_that_outlives_a_rollback_of_another_client",
    ),
    # ---- what Iceberg's clients see
    Guarantee(
        "A client of Iceberg sees that a tag has moved, however coarse the times of the store are.",
        answer(
            PublishedTable._look,
            lambda it: it.append,
            lambda append, meta: append((meta.path, meta.size_bytes, meta.modified_ms)),
        ),
        "behaviour/lake/test_iceberg_objects.py::test_what_changes_within_the_resolution_of_the_store",
    ),
    Guarantee(
        "A partition of NaN hides no row of another partition from Iceberg's clients.",
        replace(entries._bounds_of_partitions, lambda original, column, kind: (None, None)),
        "interop/formats/test_iceberg_rest.py::test_filters_on_partitions_with_nan_and_zeros",
    ),
    Guarantee(
        "An Iceberg client that deletes unknown files in the location of a table deletes no file of the table.",
        answer(PublishedTable.__init__, lambda store: store.url, lambda url, folder: url("")),
        "behaviour/lake/test_iceberg_objects.py::test_the_location_that_clients_see",
    ),
    Guarantee(
        "A version that cannot be read hides no file of another one from Iceberg's clients.",
        replace(Fold.move_to, note_at_the_end),
        "behaviour/lake/test_iceberg_objects.py::test_an_unreadable_version_hides_no_file_of_another",
    ),
    Guarantee(
        "A nested column of which a file lacks the ids is left out for Iceberg's clients, which would read nulls.",
        answer(file_ids.ids_of_file, file_ids._has_ids, lambda original, actual, wanted: True),
        "interop/formats/test_iceberg_rest.py::test_nested_columns_of_files_without_ids",
    ),
    Guarantee(
        "A name that meant two columns finds neither in a file without ids that Iceberg's clients read.",
        answer(FileIds.find_hidden, lambda names: names.finds, lambda original, column: True),
        "interop/formats/test_iceberg_rest.py::test_nested_columns_of_files_without_ids",
    ),
    Guarantee(
        "A client of Iceberg sees the columns of a branch, and not those of an earlier one of its name.",
        replace(Line.schema_of, remember_schemas),
        "behaviour/lake/test_iceberg_objects.py::test_a_branch_of_the_name_of_another_one",
    ),
    Guarantee(
        "A client of Iceberg gets no metadata that is made of two tables of one name.",
        skip(PublishedTable.load, PublishedTable._check_place),
        "behaviour/lake/test_iceberg_objects.py::test_a_table_that_is_replaced_while_it_is_loaded",
    ),
    Guarantee(
        "A client of Iceberg gets a table in a branch of a repository as it is at one moment of the branch.",
        replace(PublishedTable.load_settled, lambda original, published: published.load()),
        "interop/formats/test_iceberg_branches.py::test_a_branch_that_changes_while_a_table_is_loaded",
    ),
    Guarantee(
        "What is kept for clients of Iceberg is found by its contents: it names the bytes that a branch has now.",
        replace(ReferenceObjects.ensure, make_by_name),
        "interop/formats/test_iceberg_branches.py::test_bytes_that_were_uploaded_again_are_named_where_they_are_now",
    ),
    Guarantee(
        "A collection that finishes a drop takes nothing of a table that was made in its folder since.",
        answer(lake_drop.drop_table, lake_drop.is_dropped, lambda original, *args: True),
        "behaviour/lake/test_creation_races.py::"
        "test_a_collection_that_sleeps_takes_nothing_of_a_table_that_was_made_since",
    ),
    Guarantee(
        "A sweep of names that are given again looks before each batch whether they have been.",
        never(Sweeper.delete_all, lambda it: it.is_current),
        "behaviour/lake/test_creation_races.py::"
        "test_a_collection_that_sleeps_between_two_batches_takes_nothing_of_a_table_that_was_made_since",
    ),
    Guarantee(
        "A drop of a table that only a newer lakebed can read is finished by no older one.",
        answer(lake_drop._load_mark, document.decode_object, lambda original, body, kind, *, path: kind()),
        "behaviour/lake/test_lake.py::test_a_drop_that_cannot_be_read_is_not_finished",
    ),
]
