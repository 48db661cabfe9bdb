"""Guarantees of databases and of the object store below them: what would lose, hide or invent rows.

What races of processes break is in `tests/simulation/test_kv_mutations.py`.
"""

from __future__ import annotations

import os
from contextlib import nullcontext

import msgspec
import numpy as np

from lakebed import decoding, runtime
from lakebed.kv import (
    checkpoint,
    claim,
    collect,
    compactor,
    conditional,
    destroy,
    group_commit,
    lease,
    manifests,
    pins,
    recovery,
    transaction,
    writer,
)
from lakebed.lsm import (
    cache,
    compact,
    file_reader,
    file_writer,
    files,
    flush,
    format,
    memtable,
    merge,
    page,
    short_scan,
    tree,
    view,
)
from lakebed.lsm import (
    filter as lsm_filter,
)
from lakebed.objects import create_once, kernel_syncs, local, numbered_log, probe, shared_sync
from lakebed.objects.port import ObjectStore
from mutations.defects import (
    always,
    answer,
    change_arguments,
    change_result,
    never,
    pass_on,
    raise_nothing,
    replace,
    returns,
    see,
    several,
    skip,
)
from mutations.guarantee import Guarantee

MOVED = "behaviour/kv/test_moved_folder.py::test_a_write_to_a_folder_that_is_gone_is_not_acknowledged"


def sort_with_old_pieces(original, self, *args, **kwargs):
    """Take what was sorted before for what is to be shown, whatever was taken back since."""
    self._pieces = (self._hidden, self._pieces[1])
    return original(self, *args, **kwargs)


def join_the_sync_under_way(original, self, descriptor):
    """Take the end of a sync that began before the call for that of one of its own."""
    process = self._process
    with process.lock:
        running = next((folder.running for folder in process.folders.values()), None)
        while running is not None and not running.has_ended:
            process.ended.wait()
    if running is None:
        original(self, descriptor)


def make_each_time(original, self):
    """Each thread that comes to a call makes it."""
    function = self._untaken[-1]
    result = original(self)
    self._untaken.append(function)
    return result


def close_at_once(original, self):
    """A write that is under way goes to a number that may be another file's."""
    descriptor, self._descriptor = self._descriptor, -1
    if descriptor >= 0:
        os.close(descriptor)


def write_the_empty_record_first(original, self, lost):
    """Give the id of lost rows to an empty record before they are hidden."""
    for group in lost:
        group.body = group.body or self._wal.encode_empty(id=group.wal_id, epoch=self._epoch)
        group.memtable.take_back(group.start, group.end)


def count_a_writer_twice(original, self, sequence, row_count):
    """Count that twice as many rows were told of as were."""
    original(self, sequence, 2 * row_count)


def seal_in_two_steps(original, self):
    """Seal a group, and let an interrupt come before its rows count as sealed."""
    start = self._start
    last = original(self)
    end, self._start = self._start, start
    len(())
    self._start = end
    return last


class AnyEpoch(int):
    """An epoch that is equal to every other one."""

    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


GUARANTEES = [
    # ---- types that are decoded into
    Guarantee(
        "Threads that read records of a type for the first time do not end their process.",
        replace(decoding.hold_type_lock, lambda original: nullcontext()),
        "unit/test_decoding.py::test_a_thread_waits_while_another_learns_a_type",
    ),
    # ---- the log and its writers
    Guarantee(
        "A claim fences the writer just before it, unless that one has said that it ended.",
        change_result(lease.check_not_owned, lambda it: it._replace(ended_epoch=AnyEpoch())),
        "behaviour/kv/test_claim.py::test_only_the_writer_just_before_ends_by_its_word[a claim that lives]",
    ),
    Guarantee(
        "A writer after one that ended uses no number that files cover.",
        replace(claim._end_of_log, lambda original, claimed, last_wal_id: last_wal_id),
        "behaviour/kv/test_claim.py::test_numbers_that_files_cover_are_not_used_again",
    ),
    Guarantee(
        "A checkpoint of the latest holds what the log got since the newest manifest.",
        change_arguments(checkpoint.find_same_version, last_wal_id=0),
        "behaviour/kv/test_checkpoints.py::test_no_durable_write_is_missing_beside_a_running_writer",
    ),
    Guarantee(
        "A checkpoint of the latest pins no manifest that only a dead one held.",
        change_arguments(checkpoint.find_same_version, now_ms=0),
        "behaviour/kv/test_checkpoints.py::test_an_expired_one_lends_no_manifest",
    ),
    Guarantee(
        "A reader does not leave out acknowledged rows whose log object is missing.",
        see(recovery.read_records, lambda it: it.wal_id_last_seen, 0),
        "behaviour/kv/test_readers.py::test_a_missing_last_log_object_is_corruption",
    ),
    Guarantee(
        "A wall clock that is set back does not end a live writer's lease.",
        replace(
            lease.Lease.renew_in_s,
            lambda original, self: (
                (self.expires_at_ms - self._lifetime_ms * 2 / 3 - self._location.environment.clock.now_ms()) / 1000
            ),
        ),
        "behaviour/kv/test_lease.py::test_a_clock_that_is_set_back_does_not_end_a_lease",
    ),
    Guarantee(
        "A claim that was left behind never ends a newer owner.",
        raise_nothing(claim._next_id),
        "behaviour/kv/test_claim.py::test_a_fence_that_catches_up_never_ends_a_newer_owner",
    ),
    Guarantee(
        "A row that was acknowledged survives a flush that fails, a close and an opening.",
        see(writer.WriterCore.leave, lambda it: it.waiting_count, 0),
        "behaviour/kv/writer/test_reopen.py::test_closing_after_a_failed_flush_keeps_the_log[sst/]",
    ),
    Guarantee(
        "Rows that cannot be encoded do not stop later writes.",
        see(writer.WriterCore._append_to_log, lambda it: it.Unencodable, ZeroDivisionError),
        "behaviour/kv/writer/test_durability.py::test_rows_that_cannot_be_encoded_fail_their_own_writer",
    ),
    Guarantee(
        "A conditional write does not rest on a write that was taken back.",
        change_arguments(group_commit.LogGroups.choose_lost, checked_sequence=0),
        "behaviour/kv/writer/test_durability.py::test_a_condition_does_not_rest_on_rows_that_were_taken_back",
    ),
    Guarantee(
        "A conditional write does not rest on a value that expires before it, nor on one that operands were added to.",
        never(conditional._check_unchanged, lambda it: it.first_ms),
        "behaviour/kv/test_write_if.py::test_a_value_that_ends_between_look_and_write_is_looked_at_again",
    ),
    Guarantee(
        "A transaction that read a write that was taken back is refused.",
        raise_nothing(tree.Tree.memtables_since),
        "behaviour/kv/writer/test_durability.py::test_a_condition_does_not_rest_on_rows_that_were_taken_back",
    ),
    Guarantee(
        "Rows that were taken back do not come back with what was sorted before.",
        replace(memtable.Memtable.sorted, sort_with_old_pieces),
        "unit/lsm/test_memtable.py::test_rows_that_were_taken_back_are_as_never_written",
    ),
    Guarantee(
        "Who did not wait for rows that were lost learns of it from the next flush.",
        raise_nothing(group_commit.GroupCommit.check_unreported),
        "behaviour/kv/writer/test_durability.py::test_writers_behind_rows_that_cannot_be_encoded_go_on",
    ),
    Guarantee(
        "Rows that were lost beside those of a writer that was told of it are told of by the next flush.",
        replace(group_commit.GroupCommit._check_lost, count_a_writer_twice),
        "behaviour/kv/writer/test_durability.py"
        "::test_rows_that_nobody_waited_for_are_told_of_beside_those_that_someone_did[1-1]",
    ),
    Guarantee(
        "What an interrupted write had begun is no part of a row that is written after it.",
        returns(memtable.Memtable._mend, None),
        "behaviour/kv/test_interrupts.py::test_an_interrupted_verb_changes_no_other_row[put that ends]",
    ),
    Guarantee(
        "A linearizable read during an append sees that a newer owner has taken the database, also once it has landed.",
        see(group_commit.LogGroups.newest_owner, lambda it: it.is_tried, False),
        "behaviour/kv/writer/test_durability.py::test_a_linearizable_get_beside_an_append_sees_a_newer_owner",
    ),
    Guarantee(
        "No two log objects have a row, and the log can be read, after a write that was interrupted.",
        replace(group_commit.LogGroups.seal, seal_in_two_steps),
        "behaviour/kv/test_interrupts.py::test_an_interrupted_verb_changes_no_other_row[put]",
    ),
    Guarantee(
        "Rows that cannot be written to the log are not there, also where an interrupt came as they were taken back.",
        replace(group_commit.LogGroups.take_back, write_the_empty_record_first),
        "behaviour/kv/test_interrupts.py::test_an_interrupted_give_up_acknowledges_no_lost_row",
    ),
    # ---- clones
    Guarantee(
        "A copy of a clone's folder, when it ends or needs an ancestor no more, leaves the files of that clone alone.",
        returns(pins._is_of_another, False),
        (
            "behaviour/kv/test_clone.py::test_a_copied_folder_leaves_the_pins_of_the_clone_that_it_was_copied_from"
            "[there-destroyed]",
            "behaviour/kv/test_clone.py::test_a_copied_folder_leaves_the_pins_of_the_clone_that_it_was_copied_from"
            "[there-collected]",
        ),
    ),
    # ---- transactions
    Guarantee(
        "A value that a serializable transaction has read and that expires before its commit refuses it.",
        never(transaction.Transaction._check, lambda it: it.first_ms),
        "behaviour/kv/writer/test_transactions.py::test_the_end_of_a_value_that_was_read_is_a_change[get-0-False]",
    ),
    Guarantee(
        "So does a value that it has met in a scan of many.",
        see(view.View._visible, lambda it: it._ends, None),
        "behaviour/kv/writer/test_transactions.py::test_the_end_of_a_value_that_was_read_is_a_change[scan-500-True]",
    ),
    # ---- files
    Guarantee(
        "A get at an older moment reads files that have newer rows too.",
        see(view.View.find_value, lambda it: it.min_sequence, 1 << 62),
        "unit/lsm/test_view.py::test_a_file_with_rows_on_both_sides_of_a_sequence_is_read",
    ),
    Guarantee(
        "A key is absent when the filters of all levels say so, and not those of one.",
        change_result(view.View.filters, lambda it: it and it[:1]),
        "unit/lsm/test_tree.py::test_keys_of_several_mapped_files[True]",
    ),
    Guarantee(
        "Of the files of a level, that in whose range a key lies says whether it is absent.",
        change_result(view.View.filters, lambda it: it and [(last_keys, each[::-1]) for last_keys, each in it]),
        "unit/lsm/test_tree.py::test_filters_of_levels_of_several_mapped_files",
    ),
    Guarantee(
        "Many keys of a memtable that are asked of an older moment are not answered with its newer rows.",
        never(memtable.Memtable.find_all, lambda it: it.last_sequence),
        "unit/lsm/test_tree.py::test_many_keys_read_as_a_dictionary[0]",
    ),
    Guarantee(
        "A value of a memtable that has ended is not given where many keys are asked together.",
        never(memtable.Memtable.find_all, lambda it: it.special),
        "unit/lsm/test_tree.py::test_many_keys_read_as_a_dictionary[0]",
    ),
    Guarantee(
        "A view is given again only while nothing was written since.",
        always(tree.Tree.view_locked, lambda it: it.sequence),
        "unit/lsm/test_tree.py::test_many_keys_read_as_a_dictionary[0]",
    ),
    Guarantee(
        "A deletion hides its key also where many keys of a page are read together.",
        always(file_reader.FileReader._find_in_group, lambda it: it.PLAIN),
        "unit/lsm/test_tree.py::test_keys_of_several_mapped_files[True]",
    ),
    Guarantee(
        "Many keys that are asked of an older moment are not answered with newer rows of their pages.",
        always(file_reader.FileReader._find_in_group, lambda it: it.max_sequence),
        "unit/lsm/test_page.py::test_many_keys_of_an_older_moment",
    ),
    Guarantee(
        "A key of many is not found in a row that has more than its bytes.",
        always(page.find_values, lambda it: it.start),
        "unit/lsm/test_page.py::test_the_value_of_a_key_alone",
    ),
    Guarantee(
        "Neighbouring keys that are asked of an older moment are not answered with newer rows of their pages.",
        never(file_reader.FileReader.find_neighbours, lambda it: it.max_sequence),
        "unit/lsm/test_page.py::test_neighbours_of_a_mapped_file",
    ),
    Guarantee(
        "A key of many is looked for in the levels whose filters let it pass, where those of all are asked together.",
        change_result(lsm_filter.LevelsFilter.select, lambda places: places[::-1]),
        "unit/lsm/test_tree.py::test_many_keys_of_levels_of_several_mapped_files[0]",
    ),
    Guarantee(
        "A key that is let pass between many absent ones is answered by its rows where no value settles it.",
        change_result(view.View._find_few, lambda left: []),
        "unit/lsm/test_tree.py::test_many_keys_of_levels_of_several_mapped_files[0]",
    ),
    Guarantee(
        "Filters of files deny no key before the memtables that wait were asked.",
        never(tree.Tree.latest, lambda it: it.memtables),
        "unit/lsm/test_tree.py::test_keys_of_a_waiting_memtable_between_absent_ones",
    ),
    Guarantee(
        "A key is looked for in its page also where the directory of pages is read as it is stored.",
        change_result(format.Pages._text, lambda text: text + b"\0"),
        "unit/lsm/test_open_files.py::test_a_directory_says_the_same_where_it_is_stored_and_loaded[mapped]",
    ),
    Guarantee(
        "A page of a file that is read alone is checked before it is used.",
        never(format.unpack_page, lambda it: it.checksum),
        "property/test_sorted_file.py::test_every_damaged_byte_is_noticed[lz4]",
    ),
    Guarantee(
        "Pages of a file that are read for many keys are checked before they are used.",
        always(format.decode_pages, lambda it: it.checksums),
        "unit/lsm/test_page.py::test_damage_under_a_map",
    ),
    Guarantee(
        "Pages that a short scan reads are checked before they are used.",
        always(format.read_mapped_pages, lambda it: it.checksum),
        "unit/lsm/test_page.py::test_damage_under_a_map",
    ),
    Guarantee(
        "A key whose versions may go on behind what a scan has read is not given before they are.",
        returns(merge._Source.is_whole, True),
        "unit/lsm/test_merge.py::test_a_plain_part_of_the_only_source_is_not_cut[False]",
    ),
    Guarantee(
        "A key is not found in a row that has more than its bytes.",
        never(page.find_value, lambda it: it.start),
        "unit/lsm/test_page.py::test_the_value_of_a_key_alone",
    ),
    Guarantee(
        "Of a page that says that a value ends before it begins, no value is given.",
        never(page.find_value, lambda it: it.value_end),
        "unit/lsm/test_page.py::test_a_page_that_contradicts_itself",
    ),
    Guarantee(
        "A scan that ends soon shows of a key in several places the newest row.",
        answer(short_scan.merge_sources, reversed, lambda _, parts: parts),
        "unit/lsm/test_short_scans.py::test_the_newest_place_of_a_key_counts",
    ),
    Guarantee(
        "A block of pages that is read whole is checked before it is used.",
        never(format.decode_blocks, lambda it: it.checksums),
        "property/test_sorted_file.py::test_every_damaged_byte_is_noticed[lz4]",
    ),
    Guarantee(
        "Many keys asked of a view are not answered with newer rows from the cache.",
        never(view.View._values_in_cache, lambda it: it.generation),
        "unit/lsm/test_tree.py::test_a_view_takes_cached_rows_of_its_own_moment_alone",
    ),
    Guarantee(
        "A read of many keys that a newer write overtook leaves no old value in the cache of rows.",
        always(cache.RowCache.put_each, lambda it: it.generation),
        "unit/lsm/test_tree.py::test_a_late_read_of_many_keys_keeps_no_old_value",
    ),
    Guarantee(
        "Bytes of a key in the middle of other keys are not taken for the key.",
        always(page._first_row, lambda it: it.length),
        "unit/lsm/test_page.py::test_keys_inside_other_keys[keys0]",
    ),
    Guarantee(
        "A key is in the filter of its file also where keys are hashed as a column.",
        change_result(lsm_filter._spread_bits, lambda it: it + 1),
        "unit/lsm/test_files.py::test_hashes_of_a_column[lengths1]",
    ),
    Guarantee(
        "Versions of one key are not parted by the pages of a block.",
        answer(
            file_writer.FileWriter._cut,
            file_writer._page_starts,
            lambda page_starts, *args, is_repeat, **kwargs: page_starts(
                *args, is_repeat=np.zeros_like(is_repeat), **kwargs
            ),
        ),
        "unit/lsm/test_page.py::test_many_versions_of_one_key[65536]",
    ),
    Guarantee(
        "A branch does not read rows that its parent wrote after the branch point.",
        see(file_reader.FileReader.__init__, lambda it: it.ceiling, None),
        "unit/lsm/test_ceilings.py::test_a_branch_does_not_read_newer_rows_of_its_parent",
    ),
    Guarantee(
        "A lookup of one key does not pass the ceiling of a file.",
        see(file_reader.FileReader.get, lambda it: it._ceiling, None),
        "unit/lsm/test_ceilings.py::test_a_ceiling_bounds_what_a_reader_is_asked_for",
    ),
    Guarantee(
        "A compaction ends when all of its files are durable, also those that another thread puts.",
        skip(compact._Cutter.finish, compact._Cutter._await_put),
        "unit/lsm/test_compact.py::test_a_put_that_fails_ends_it",
    ),
    Guarantee(
        "A file of the newest version that is missing is damage for a compaction, and no race that is tried again.",
        answer(compactor.Compactor._plan_and_run, lambda it: it.apply_to, lambda original, *args: None),
        "behaviour/kv/test_compactor.py::test_a_missing_input_is_damage_only_while_the_newest_version_names_it[True]",
    ),
    Guarantee(
        "A compaction of a branch writes no row that its parent wrote after the branch point.",
        answer(
            compact._rows,
            files.FileStore.reader,
            lambda reader, meta: reader(msgspec.structs.replace(meta, through_sequence=None)),
        ),
        "unit/lsm/test_ceilings.py::test_a_compaction_writes_nothing_above_a_ceiling",
    ),
    Guarantee(
        "Versions that share a file each see their own part of it.",
        see(files.FileStore.reader, lambda it: it.through_sequence, None),
        "unit/lsm/test_ceilings.py::test_a_ceiling_bounds_what_a_reader_is_asked_for",
    ),
    Guarantee(
        "A read as of a sequence whose history is gone is refused, not answered wrongly.",
        raise_nothing(tree.Tree.view),
        "unit/lsm/test_ceilings.py::test_a_view_of_what_is_not_there_is_refused",
    ),
    # ---- the object store
    Guarantee(
        "A store that ignores create-only puts is refused.",
        returns(probe.probe_create_only, None),
        "behaviour/lake/test_lake.py::test_a_store_that_ignores_create_only_is_refused",
    ),
    Guarantee(
        "A writer that withdraws its file leaves that of another alone.",
        always(numbered_log.NumberedLog.withdraw, lambda it: it._write_id_of),
        "property/test_numbered_log.py::test_a_withdrawal_leaves_the_file_of_another_writer",
    ),
    Guarantee(
        "An upload replaces no object.",
        pass_on(create_once.put_new, ObjectStore.put, create_only=False),
        "behaviour/server/test_late_uploads.py::test_no_upload_replaces_an_object",
    ),
    Guarantee(
        "What could not be synced is not put again, for a second sync would call it durable.",
        several(never(create_once.put_new, lambda it: it.kind), never(create_once.create_once, lambda it: it.kind)),
        (
            "unit/objects/test_local.py::test_what_could_not_be_synced_is_not_put_again[put_new]",
            "unit/objects/test_local.py::test_what_could_not_be_synced_is_not_put_again[create_once]",
        ),
    ),
    Guarantee(
        "A collection of a server's records takes no more memory when more was written since the last.",
        pass_on(collect._Round.run, destroy.find_objects, log_count_max=None),
        "behaviour/key_value/test_maintenance.py::test_a_long_log_is_collected_in_parts[free]",
    ),
    Guarantee(
        "A file of a database that could not be synced is written anew before the log goes.",
        never(tree.Tree._write, lambda it: it.kind),
        "unit/lsm/test_tree.py::test_a_file_that_could_not_be_synced_is_written_anew",
    ),
    Guarantee(
        "No write is acknowledged in a folder that is made anew under the name of an open database's.",
        several(
            returns(local._RequiredFolder.is_gone, value=False), returns(local._RequiredFolder.is_other, value=False)
        ),
        f"{MOVED}[True-rename]",
    ),
    Guarantee(
        "No write is acknowledged in another folder that was put in the place of an open database's.",
        returns(local._RequiredFolder.is_other, value=False),
        f"{MOVED}[False-restore_a_copy]",
    ),
    Guarantee(
        "A large upload to a folder replaces no object.",
        pass_on(local._LocalUpload._finish_hidden, local._give_name, create_only=False),
        "unit/objects/test_local.py::test_an_object_that_is_written_where_it_will_be[True]",
    ),
    Guarantee(
        "A file that was written where it lies is on the disk before it has a name.",
        pass_on(local._LocalUpload.finish, local.LocalDriver.name_nameless, durable=False),
        "unit/objects/test_local.py::test_a_durable_upload_is_on_the_disk_before_it_is_named[False]",
    ),
    Guarantee(
        "Blocks are in a file in the order in which they came, whichever thread packs them.",
        skip(file_writer.FileWriter._begin_packing, file_writer.FileWriter._end_packing),
        "unit/lsm/test_compact.py::test_threads_write_what_one_thread_writes[False]",
    ),
    Guarantee(
        "A step of a compaction is made once, also where no thread could be started for it.",
        replace(runtime._Call.make, make_each_time),
        "unit/ground/test_calls.py::test_a_call_is_made_once_where_no_thread_is_started",
    ),
    Guarantee(
        "What is written where it will be gets into no other file, though it is abandoned meanwhile.",
        replace(local._LocalUpload._close, close_at_once),
        "unit/objects/test_local.py::test_an_upload_is_not_closed_under_a_write[False]",
    ),
    Guarantee(
        "An upload is not acknowledged before its name is on the disk, whatever other uploads sync.",
        replace(shared_sync.SharedSyncs.sync, join_the_sync_under_way),
        "unit/objects/test_shared_sync.py::test_a_sync_under_way_covers_no_later_caller",
    ),
    Guarantee(
        "Objects that are put together in a folder are on the disk when that is said.",
        skip(local.LocalDriver._put_nameless_each, local.LocalDriver._flush_each),
        "unit/objects/test_kernel_syncs.py::test_objects_that_are_put_together_are_durable[kernel]",
    ),
    Guarantee(
        "Of files that are synced together, one that could not be written is an error.",
        raise_nothing(local.LocalDriver._flush_each),
        "unit/objects/test_kernel_syncs.py::test_a_file_that_cannot_be_synced_is_an_error[kernel]",
    ),
    Guarantee(
        "The kernel's answers about files that are synced together are told of the right ones.",
        change_result(kernel_syncs._wait, sorted),
        "unit/objects/test_kernel_syncs.py::TestKernel::test_a_failure_is_told_of_its_file",
    ),
    Guarantee(
        "A process whose clock is ahead destroys no database that a checkpoint holds.",
        answer(destroy._read_agreed_ms, destroy.store_time_ms, lambda original, *args, **kwargs: 2**62),
        "behaviour/kv/test_destroy.py::test_a_process_whose_clock_is_ahead_destroys_nothing_that_a_checkpoint_holds",
    ),
    Guarantee(
        "A compactor whose clock is ahead deletes no value that lives for others.",
        answer(files.FileStore.read_agreed_ms, files.store_time_ms, lambda original, *args, **kwargs: 2**62),
        "behaviour/kv/test_compactor.py::test_a_compactor_whose_clock_is_ahead_takes_no_row_for_ended",
    ),
    Guarantee(
        "A clock that was ahead during a flush ends no value.",
        change_arguments(flush.compact_rows, now_ms=2**62),
        "behaviour/kv/test_compactor.py::test_a_clock_that_was_ahead_during_a_flush_ends_no_row",
    ),
    Guarantee(
        "A database that only a newer lakebed may write loses nothing to an older one's collection.",
        raise_nothing(manifests.ManifestLog._refuse_newer),
        "behaviour/kv/test_collect.py::test_a_database_that_only_a_newer_lakebed_may_write_loses_nothing[False]",
    ),
]
