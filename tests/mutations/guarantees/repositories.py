"""Guarantees of repositories: no commit, staged entry or object that something names is lost or read as another.

What races of processes break is in `tests/simulation/test_repo_mutations.py`.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from itertools import groupby

import msgspec

from lakebed import whole_file
from lakebed.errors import NotFound, UnsupportedFormat
from lakebed.http import endpoint, memory, replies
from lakebed.http.application import RouteTable
from lakebed.key_value.port import KeyValue
from lakebed.key_value.postgres_connections import Connections
from lakebed.objects import create_once, local
from lakebed.objects.port import ObjectStore
from lakebed.repo import directories, drop, fs
from lakebed.repo.collect import addresses, collect
from lakebed.repo.heads import commit, heads, multipart, write
from lakebed.repo.lakefs import metaranges, restore, symlinks
from lakebed.repo.model import commit_graph, layout, names
from lakebed.repo.objects import data, intact
from lakebed.repo.outside import namespace
from lakebed.repo.records import context, records
from lakebed.repo.records.records import replace_record
from lakebed.repo.references import branches, history, mark, tags
from lakebed.repo.staging import protocol, view
from lakebed.repo.transport import catalog
from lakebed.repo.transport.transport import LocalTransport
from lakebed.repo.verbs import message, reset
from lakebed.server.routes import verbs as verb_routes
from lakebed.server.s3 import listing as s3_listing
from mutations.defects import (
    always,
    answer,
    change_arguments,
    change_result,
    forget,
    never,
    pass_on,
    raise_nothing,
    replace,
    returns,
    see,
    set_value,
    several,
    skip,
)
from mutations.guarantee import Guarantee

LAKEFS = "behaviour/repo/test_lakefs.py"
SUPERSEDED = "behaviour/repo/test_superseded.py"
NEWER = "behaviour/repo/test_newer_records.py"


def read_no_hidden_branches(original, *args, **named):
    """Leave hidden branches out of what is read."""
    return ((name, record) for name, record in original(*args, **named) if not getattr(record, "hidden", False))


def without_field(members, name):
    """JSON without a member, wherever it is."""
    if isinstance(members, list):
        return [without_field(item, name) for item in members]
    if not isinstance(members, dict):
        return members
    return {key: without_field(value, name) for key, value in members.items() if key != name}


def decode_known(original, raw, kind, *, key):
    """Leave out what is not known."""
    while True:
        try:
            return original(raw, kind, key=key)
        except UnsupportedFormat as newer:
            raw = msgspec.json.encode(without_field(msgspec.json.decode(raw), newer.facts["unknown"]))


def walk_until_known(original, marked, heads):
    """End where one way leads to what another has shown, as if nothing else were waiting."""
    shown = set()
    for commit_id, record in original(marked, heads):
        yield commit_id, record
        shown.add(commit_id)
        if shown.intersection(record.parents):
            return


def create_in_deleted(original, key_value, puts, *, expected):
    """Do not expect that the repository is there, which is the last of what is expected."""
    return original(key_value, puts, expected=dict(list(expected.items())[:-1]))


def change_whatever_is_there(original, key_value, key, changed, *, expected):
    """Write a record over another one than was read."""
    key_value.set(key, changed)
    return True


def complete_whatever_became_of_it(original, key_value, puts, *, expected):
    """Do not expect the record of the upload."""
    kept = {key: value for key, value in expected.items() if b"/multipart/" not in key}
    return original(key_value, puts, expected=kept)


def bare_upload(path):
    """The id that is the name of a file below ``uploads/``."""
    return path.removeprefix("uploads/") if path.startswith("uploads/") and layout.is_file_id(path[8:]) else None


GUARANTEES = [
    Guarantee(
        "A conditional put that is acknowledged during a merge hides nothing that the merge brings.",
        pass_on(commit.move_by_commits, heads.move_branch, shows_other=False),
        "behaviour/repo/test_decided_writes.py::"
        "test_one_of_a_move_and_a_conditional_put_finds_the_other[merge-topic-put_if_absent]",
    ),
    Guarantee(
        "A table's commit that is acknowledged during a merge into its branch hides no row of the merge.",
        answer(
            write._write_decided,
            write.write_rows,
            lambda original, context, keys, values, **named: original(context, keys[:1], values[:1], **named),
        ),
        "behaviour/repo/test_decided_writes.py::"
        "test_a_commit_of_a_table_and_a_merge_into_its_branch_do_not_hide_each_other",
    ),
    Guarantee(
        "A table's commit that is acknowledged while its branch is reset keeps no snapshot without its files.",
        answer(
            heads.move_branch,
            heads._see_given_up,
            lambda original, context, branch, **named: heads.seal(context, branch, **named),
        ),
        "behaviour/repo/test_reset.py::test_a_commit_of_a_table_during_a_reset_leaves_a_table_that_can_be_read[all]",
    ),
    Guarantee(
        "A table's commit that is acknowledged while its folder is reset keeps no snapshot without its files.",
        several(change_arguments(heads.move_branch, shows_other=False), returns(reset._has_staged, False)),
        "behaviour/repo/test_reset.py::test_a_commit_of_a_table_during_a_reset_leaves_a_table_that_can_be_read[table]",
    ),
    Guarantee(
        "A reset does not drop what others have sealed without what was staged above it.",
        see(heads.publish, lambda it: it.is_stored, True),
        "behaviour/repo/test_reset.py::test_a_commit_of_a_table_during_a_reset_leaves_a_table_that_can_be_read[sealed]",
    ),
    Guarantee(
        "A read that shares a look at the records shows what was written before its request came.",
        returns(replies.Arrivals.add, 0),
        "unit/server/test_moments.py::test_a_later_request_sees_what_was_written_before_it_came",
    ),
    Guarantee(
        "A repository on a full disk can be freed, also while the outcome of a change is unknown.",
        replace(message.Described.room, lambda original, verb: nullcontext()),
        "behaviour/lake/test_full_disk.py::test_a_served_repository_is_freed_on_a_full_disk[key known]",
    ),
    Guarantee(
        "Space is freed on a full disk also by requests whose key has to be read again.",
        never(endpoint.EndpointApp._authenticate, lambda it: it.frees_space),
        "behaviour/lake/test_full_disk.py::test_a_served_repository_is_freed_on_a_full_disk[key read again]",
    ),
    Guarantee(
        "Objects that are stored together are durable before a row names them.",
        skip(ObjectStore.put_each, ObjectStore.sync),
        "behaviour/repo/test_uploads_together.py::test_bytes_are_durable_before_they_are_named",
    ),
    Guarantee(
        "What a commit names is durable before the commit names it.",
        skip(ObjectStore.put_each, ObjectStore.sync),
        "unit/repo/committed/test_range_writer.py::test_what_is_named_is_durable_before_it_is_named",
    ),
    Guarantee(
        "What one thread of a server has freed, another takes: its memory ends where its caches end.",
        set_value(memory, lambda it: it._ARENAS_MAX, 64),
        "behaviour/server/test_memory.py::test_threads_of_a_serving_process_share_what_the_c_library_frees",
    ),
    Guarantee(
        "Objects that are stored together are durable also after the reply to one of them was lost.",
        skip(create_once._sync_present, ObjectStore.sync),
        "behaviour/repo/test_uploads_together.py::test_a_lost_reply_makes_no_bytes_less_durable",
    ),
    Guarantee(
        "A downloaded file has the bytes of its own object, whatever its neighbours are called.",
        replace(
            whole_file.name_unfinished, lambda original, target: target.with_name(f".{target.name[:50]}.unfinished")
        ),
        "behaviour/repo/test_directories.py::test_files_with_names_alike_keep_their_own_bytes",
        error=FileNotFoundError,
    ),
    Guarantee(
        "An empty branch is deleted without what is acknowledged meanwhile.",
        raise_nothing(protocol.WriteAttempts._check_closed),
        "behaviour/repo/test_branches.py::test_an_empty_branch_goes_without_what_is_written_meanwhile",
    ),
    Guarantee(
        "A list of addresses has every object of its folder.",
        replace(
            symlinks._folders_of,
            lambda _, rows: (
                (folder, [entry for _, entry in group])
                for folder, group in groupby(rows, key=lambda row: row[0].rpartition("/")[0])
            ),
        ),
        "behaviour/server/test_dumps.py::test_a_list_of_addresses_has_every_object_of_its_folder",
    ),
    Guarantee(
        "A directory that is moved through fsspec loses no path, however odd.",
        replace(
            fs.RepositoryFileSystem.find,
            lambda original, self, path, maxdepth=None, withdirs=False, detail=False, **kwargs: original(
                self, path, 99 if withdirs else maxdepth, withdirs, detail, **kwargs
            ),
        ),
        "behaviour/repo/test_filesystem.py::test_whole_directories_are_copied_moved_and_deleted_with_every_path",
    ),
    Guarantee(
        "A directory that is moved through fsspec takes nothing with it that came meanwhile.",
        replace(
            fs.RepositoryFileSystem.mv,
            lambda original, self, path1, path2, recursive=False, maxdepth=None, **kwargs: (
                self.copy(path1, path2, recursive=recursive, maxdepth=maxdepth),
                self.rm(path1, recursive=recursive),
            ),
        ),
        "behaviour/repo/test_filesystem.py::test_a_move_deletes_nothing_that_came_meanwhile",
    ),
    Guarantee(
        "What a tag may be called, a reference may name.",
        see(
            names._match_reference,
            lambda it: it._REFERENCE,
            re.compile(names._REFERENCE.pattern.replace("[^~", r"[^\s~")),
        ),
        "unit/repo/test_names.py::test_a_tag_with_a_space_of_another_alphabet_is_read_by_its_name",
    ),
    Guarantee(
        "A bare repository keeps nobody from seeing what pins the versions of the others.",
        returns(branches.is_bare, value=False),
        "behaviour/lake/test_repositories.py::test_a_bare_repository_spoils_nothing",
    ),
    Guarantee(
        "A repository that lost its branches is not taken for a bare one.",
        returns(branches.is_bare, value=True),
        "behaviour/lake/test_repositories.py::test_a_lost_default_branch_is_not_taken_for_a_bare_repository",
    ),
    # ---- uploads in parts
    Guarantee(
        "A completion of an upload that was aborted stages nothing.",
        answer(multipart._publish, lambda it: it.write_unique, complete_whatever_became_of_it),
        "behaviour/server/s3/test_multipart.py::test_an_abort_during_a_completion_wins_before_it_is_staged",
    ),
    # ---- listings
    Guarantee(
        "A listing over S3 that begins inside of a branch does not leave out the rest of the branch.",
        returns(s3_listing._is_cut, value=False),
        "behaviour/server/s3/test_listing.py::test_a_page_that_begins_inside_of_a_branch",
    ),
    Guarantee(
        "No upload is acknowledged in a folder that is made anew under the name of a repository's.",
        returns(local._RequiredFolder.is_gone, value=False),
        "behaviour/repo/test_repositories.py::test_an_upload_does_not_make_the_folder_of_a_repository_anew",
    ),
    # ---- collection
    Guarantee(
        "What a branch gave up stays for the minimum age after that, however old its files are.",
        pass_on(collect._Collection._mark, mark.mark, grace_ms=0),
        f"{SUPERSEDED}::test_a_reader_goes_on_for_the_minimum_age_after_its_state_was_replaced[compaction]",
    ),
    Guarantee(
        "What was compacted on a deleted branch stays for the minimum age.",
        answer(branches._traces, branches.supersede_compaction, lambda original, *args, **facts: []),
        f"{SUPERSEDED}::test_a_reader_goes_on_for_the_minimum_age_after_its_state_was_replaced[deletion of the branch]",
    ),
    Guarantee(
        "What a deleted tag named stays for the minimum age.",
        answer(tags.delete_tag, lambda it: it.write, lambda write, puts, *args, **facts: write((), *args, **facts)),
        f"{SUPERSEDED}::test_what_a_tag_named_stays_for_the_minimum_age[deleted]",
    ),
    Guarantee(
        "What an expired tag named stays for the minimum age.",
        change_arguments(mark.mark, grace_ms=0),
        f"{SUPERSEDED}::test_what_a_tag_named_stays_for_the_minimum_age[expired]",
    ),
    Guarantee(
        "The objects of what was replaced stay as long as its ranges.",
        answer(collect._Collection._plan_reclaim, lambda it: it.setdefault, lambda original, *args: None),
        f"{SUPERSEDED}::test_the_objects_of_a_replaced_state_stay_too",
    ),
    Guarantee(
        "What a collection with a shorter minimum age has taken does not stop another.",
        returns(collect._Listed.is_gone, False),
        f"{SUPERSEDED}::test_collections_with_other_minimum_ages_do_not_stop_one_another",
    ),
    Guarantee(
        "A range of a newer format protects everything from a collection.",
        see(collect._Collection._guard, UnsupportedFormat, ZeroDivisionError),
        "behaviour/repo/test_collection.py::test_a_range_of_a_newer_format_protects_everything",
    ),
    Guarantee(
        "A commit that loses its objects is marked as expired, also when the rules change during a collection.",
        forget(collect._Collection._judge, lambda it: it.active),
        "behaviour/repo/test_collection.py::test_rules_that_change_during_a_collection_take_nothing_without_a_mark",
    ),
    Guarantee(
        "A collection keeps every side of a history with branches and merges.",
        replace(mark._walk, walk_until_known),
        "behaviour/repo/test_retention.py::test_every_side_of_a_history_with_merges_is_kept",
    ),
    Guarantee(
        "A collection keeps the objects of hidden branches.",
        answer(mark.mark, mark.read_records, read_no_hidden_branches),
        "behaviour/repo/test_retention.py::test_hidden_branches_keep_their_objects",
    ),
    Guarantee(
        "A collection keeps what is staged in sealed tokens.",
        see(mark.mark, lambda it: it.sealed, ()),
        "behaviour/repo/test_retention.py::test_sealed_tokens_keep_their_objects",
    ),
    Guarantee(
        "Of two rules of retention for one commit the longer wins.",
        answer(mark._keep_longest, min, lambda original, *times: max(times)),
        "behaviour/repo/test_retention.py::test_of_two_rules_for_one_commit_the_longer_wins",
    ),
    Guarantee(
        "Retention keeps what commits of older versions follow.",
        never(mark._retain_behind, lambda it: it.stored_at_ms),
        "behaviour/repo/test_retention.py::test_commits_of_older_versions_are_kept",
    ),
    Guarantee(
        "A clock that was set back does not make a commit older than what it follows.",
        answer(
            commit.new_commit,
            max,
            lambda original, values, **facts: original(values, **facts) if facts else values[0],
        ),
        "behaviour/repo/test_retention.py::test_a_clock_that_was_set_back_ages_no_commit",
    ),
    # ---- readers
    Guarantee(
        "A reader whose state was collected before its first row looks again.",
        replace(view.look_again, lambda original, look: look()),
        f"{SUPERSEDED}::test_no_verb_fails_because_what_it_opened_was_replaced_and_collected[exists]",
    ),
    Guarantee(
        "A reader that is too late for its state is told to read again, not that something is damaged.",
        always(mark.explaining_missing, all),
        f"{SUPERSEDED}::test_a_reader_goes_on_for_the_minimum_age_after_its_state_was_replaced[commit]",
    ),
    Guarantee(
        "A missing file that a branch needs is corruption.",
        never(mark.explaining_missing, all),
        f"{SUPERSEDED}::test_a_file_that_the_branch_needs_and_misses_is_still_corruption",
    ),
    Guarantee(
        "An object that was overwritten and collected while it was opened is looked up again.",
        see(data.read_found, NotFound, ZeroDivisionError),
        f"{SUPERSEDED}::test_an_object_that_is_replaced_and_collected_while_it_is_opened_is_looked_up_again",
    ),
    Guarantee(
        "A commit that a collection is about to forget is reported as expired, not as damaged.",
        skip(tags.reading_commits, tags.refuse_expired),
        "behaviour/repo/test_collection.py::test_a_commit_whose_collection_ended_early_has_expired",
    ),
    Guarantee(
        "An imported object whose source changed is an error, never other bytes.",
        skip(intact._check_read, intact.check_source),
        "behaviour/repo/test_intact.py::test_an_imported_object_that_changed_is_not_read[process-same size]",
    ),
    Guarantee(
        "A source that changes while it is streamed is noticed.",
        skip(intact._check, intact.check_source),
        "behaviour/repo/test_intact.py::test_a_source_that_changes_during_a_stream_is_noticed",
    ),
    Guarantee(
        "An object of a repository that is shorter or longer than recorded is corrupt.",
        raise_nothing(intact._check_read),
        "behaviour/repo/test_intact.py::test_a_whole_read_sees_an_object_that_grew",
    ),
    # ---- writers
    Guarantee(
        "A handle of a deleted repository acknowledges no write that the deletion takes away.",
        answer(
            catalog.LocalCatalog.delete,
            catalog.write_unique,
            lambda original, key_value, puts, deletes, **facts: original(key_value, puts, deletes[:1], **facts),
        ),
        "behaviour/repo/test_repositories.py::test_a_deleted_repository_takes_no_write",
    ),
    Guarantee(
        "A handle through a server neither reads nor changes another repository that has the name of its own now.",
        never(verb_routes._open, lambda it: it.uid),
        "behaviour/repo/test_remote.py::test_a_handle_of_a_repository_that_was_made_again_is_refused",
    ),
    Guarantee(
        "A handle of a deleted repository makes no branch in it.",
        answer(branches._create, branches.write_unique, create_in_deleted),
        "behaviour/repo/test_repositories.py::test_no_branch_is_made_in_a_repository_that_is_deleted_meanwhile",
    ),
    Guarantee(
        "A branch that is made while its repository is deleted goes with it.",
        answer(catalog.LocalCatalog.delete, lambda it: it.write, lambda write, *args: None),
        "behaviour/repo/test_repositories.py::test_a_branch_that_is_made_while_its_repository_is_deleted_goes_too",
    ),
    Guarantee(
        "Who sets a key of a repository's metadata loses no key that another one has set meanwhile.",
        answer(catalog.LocalCatalog.change_metadata, replace_record, change_whatever_is_there),
        "behaviour/repo/test_repositories.py::test_changes_that_meet_another_are_made_again",
    ),
    Guarantee(
        "An upload with If-Match is decided at the moment in which it is staged.",
        raise_nothing(write.stage_if_match),
        "behaviour/server/test_lakefs.py::test_an_upload_can_expect_what_is_there",
    ),
    Guarantee(
        "Bytes that were uploaded by others and linked survive a power loss.",
        skip(data.link_object, lambda it: it.sync),
        "behaviour/repo/test_data.py::test_linked_bytes_survive_a_power_loss",
    ),
    Guarantee(
        "A file whose writing failed does not become an object.",
        skip(fs._StagedFile.__exit__, fs._StagedFile.discard),
        "behaviour/repo/test_filesystem.py::test_what_goes_wrong",
    ),
    Guarantee(
        "A reset of a folder leaves no snapshot of a table, even for a moment, whose files it took.",
        change_arguments(heads.move_branch, shows_other=False),
        "behaviour/repo/test_decided_writes.py::test_a_commit_by_others_during_a_reset_of_a_table_takes_no_snapshot_"
        "without_its_files[in the reset]",
    ),
    # ---- directories
    Guarantee(
        "A download of a mistyped prefix with --delete does not empty the local directory.",
        raise_nothing(directories.download_directory),
        "behaviour/repo/test_directories.py::test_a_prefix_without_objects_empties_no_directory[typo-True]",
    ),
    Guarantee(
        "An upload of a directory deletes only when it is told to.",
        change_arguments(directories.upload_directory, delete=True),
        "behaviour/repo/test_directories.py::test_deleting_what_the_other_side_does_not_have",
    ),
    Guarantee(
        "A move of files, or an upload of a directory, deletes nothing that others have put in place of what it saw.",
        raise_nothing(write._check_unchanged),
        "behaviour/repo/test_filesystem.py::test_a_move_does_not_delete_what_a_merge_brings_to_the_old_path",
        "behaviour/repo/test_directories.py::test_what_others_write_during_a_copy_is_not_deleted",
    ),
    # ---- metadata, and the index of the history
    Guarantee(
        "New metadata of an object never bring back bytes that were overwritten meanwhile.",
        pass_on(write._write_decided, write.write_rows, expected={}),
        "behaviour/repo/test_update_metadata.py::test_a_write_meanwhile_keeps_its_bytes[True]",
    ),
    Guarantee(
        "New metadata of an object never bring it back after it was deleted.",
        pass_on(write._write_decided, write.write_rows, expected={}),
        "behaviour/repo/test_update_metadata.py::test_a_deletion_meanwhile_is_not_undone[False]",
    ),
    Guarantee(
        "The index of a history leaves out no commit that changed something in a folder.",
        change_result(commit_graph.path_keys, lambda keys: keys[:1]),
        "behaviour/repo/test_history_index.py::test_a_long_history_is_not_read_for_one_path",
    ),
    Guarantee(
        "A damaged index of a history answers nothing wrong.",
        replace(commit_graph.decode_segment, lambda original, raw, *, first: commit_graph._decode(raw[8:])),
        "behaviour/repo/test_history_index.py::test_a_damaged_index_answers_nothing_wrong[swapped-3]",
    ),
    Guarantee(
        "Two processes that index a history at once do not mix what they write.",
        pass_on(history._Writer.write, KeyValue.write, expected={}),
        "behaviour/repo/test_history_index.py::test_two_that_index_at_once_write_one_index",
    ),
    # ---- records of another storage
    Guarantee(
        "A repository is not opened with the records of another storage.",
        skip(catalog.LocalCatalog.repository, catalog.LocalCatalog._check_namespace),
        "behaviour/repo/test_repositories.py::test_records_of_another_storage_are_refused",
    ),
    Guarantee(
        "A collection with the records of another storage deletes nothing.",
        raise_nothing(namespace.is_shared_namespace),
        "behaviour/repo/test_repositories.py::test_a_collection_with_records_of_another_storage_deletes_nothing",
    ),
    Guarantee(
        "What is left of a repository of another storage is not what is here.",
        skip(drop._sweep, namespace.check_namespace),
        "behaviour/repo/test_repositories.py::test_remains_of_a_repository_of_another_storage_are_not_deleted",
    ),
    # ---- moving from lakeFS
    Guarantee(
        "A restore that a collection overtook names nothing that may be deleted.",
        pass_on(restore._Restore._publish, restore.write_unique, expected={}),
        f"{LAKEFS}::test_a_collection_during_a_restore_ends_it",
    ),
    Guarantee(
        "A damaged file of lakeFS is an error, never another history.",
        raise_nothing(metaranges.LakefsNamespace.rows),
        "unit/repo/lakefs/test_sstable.py::test_every_damage_is_an_error",
    ),
    Guarantee(
        "What lakeFS has in a namespace that is shared with it is never deleted.",
        returns(namespace.is_of_lakefs, False),
        f"{LAKEFS}::test_a_shared_namespace_keeps_what_is_of_lakefs",
    ),
    Guarantee(
        "What lakeFS has stays where an older version dropped the field of a record that says so.",
        replace(namespace.is_shared_namespace, lambda original, store, record, **_: record.is_shared),
        f"{LAKEFS}::test_a_shared_namespace_is_remembered_where_an_older_version_changed_the_record",
    ),
    Guarantee(
        "A sweep of a shared namespace that ends behind the marker is continued as one of a shared namespace.",
        returns(drop._state_sharing, True),
        f"{LAKEFS}::test_a_shared_namespace_is_remembered_where_an_older_version_changed_the_record",
    ),
    Guarantee(
        "What users had in a namespace before it became a repository's is never deleted.",
        returns(namespace.start_ulid, ""),
        f"{LAKEFS}::test_a_shared_namespace_keeps_what_is_of_lakefs",
    ),
    Guarantee(
        "A file that has no name which a repository gives is never deleted by a collection.",
        replace(layout.made_ulid, lambda original, path: layout.name_ulid(path) or None),
        "behaviour/repo/test_collection.py::test_what_has_no_name_that_a_repository_gives_stays",
    ),
    Guarantee(
        "The sweep of a deleted repository takes nothing of the next one in its folder, however long it sleeps.",
        answer(drop._sweep, lambda it: it.get, lambda get, key: b"there"),
        "behaviour/repo/test_repositories.py::test_a_sweep_that_sleeps_takes_nothing_of_the_next_repository_there",
    ),
    Guarantee(
        "A process whose clock was set forward gives up nothing that all processes keep for days.",
        replace(context.earlier_ms, lambda original, store, environment: environment.clock.now_ms()),
        "behaviour/repo/test_upkeep.py::test_a_clock_that_is_set_forward_gives_nothing_up",
    ),
    Guarantee(
        "A process whose clock is ahead gives no name of a tag away that has not ended by the store's clock.",
        answer(tags.create_tag, lambda it: it.earlier_ms, lambda original: 2**62),
        "behaviour/repo/test_tags.py::test_a_process_whose_clock_is_ahead_gives_no_name_of_a_tag_away",
    ),
    Guarantee(
        "A file of a user below `uploads/` whose name is an id is never deleted by a collection.",
        replace(layout.made_ulid, lambda original, path: original(path) or bare_upload(path)),
        "behaviour/repo/test_collection.py::test_what_has_no_name_that_a_repository_gives_stays",
    ),
    Guarantee(
        "A handle of a deleted repository answers no question, and sets no rule of one that is not there.",
        returns(LocalTransport._look, None),
        "behaviour/repo/test_repositories.py::test_a_deleted_repository_answers_no_question",
    ),
    Guarantee(
        "A tag called as a word of a path is the one that a request names.",
        returns(RouteTable._find_as_written, None),
        "unit/http/test_route_table.py::test_a_slash_in_a_name_is_told_from_one_between_names",
    ),
    Guarantee(
        "A forked process reads no replies of PostgreSQL to its parent, and ends no connection of it.",
        returns(Connections._leave_parents, None),
        "behaviour/key_value/test_postgres.py::test_a_forked_process_has_connections_of_its_own",
    ),
    Guarantee(
        "A collection deletes nothing beside records of a kind that only a newer lakebed knows.",
        returns(records.refuse_unknown, None),
        f"{NEWER}::test_a_collection_deletes_nothing_beside_records_of_a_kind_that_it_does_not_know[holds/1]",
    ),
    Guarantee(
        "A collection deletes nothing while a commit or a tag has a field that only a newer lakebed knows.",
        pass_on(mark.mark, records.read_records, whole=False),
        f"{NEWER}::test_a_collection_deletes_nothing_where_a_record_has_a_field_that_it_does_not_know[tag-path2]",
    ),
    Guarantee(
        "A collection deletes nothing beside an entry with elements that only a newer lakebed knows.",
        raise_nothing(addresses.addresses_of),
        f"{NEWER}::test_a_collection_deletes_nothing_beside_an_entry_with_more_elements[True]",
    ),
    Guarantee(
        "A change of a branch drops no field of its record that only a newer lakebed knows.",
        replace(records.decode_record, decode_known),
        f"{NEWER}::test_a_change_of_a_record_drops_no_field_that_it_does_not_know[commit]",
    ),
]
