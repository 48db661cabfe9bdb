"""Guarantees of tenants: without fences, seals and logs rows are lost, come twice or are of another history.

What races of processes break is in `tests/simulation/test_fleet_mutations.py`.
"""

from __future__ import annotations

import uuid

import msgspec

from lakebed import backoff
from lakebed.errors import Conflict, NotFound
from lakebed.fleet import address, client, ledger, machine, manifest, routing, together
from lakebed.fleet import timeline as client_timeline
from lakebed.fleet.control import claim
from lakebed.fleet.control.collector import Collector
from lakebed.fleet.control.members import Members
from lakebed.fleet.control.plane import ControlPlane
from lakebed.fleet.control.reconciler import Reconciler
from lakebed.fleet.log import changes as log_changes
from lakebed.fleet.log import jetstream_subjects, record
from lakebed.fleet.log import timeline as log_timeline
from lakebed.fleet.log import write_ids as log_write_ids
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.log.timeline import End
from lakebed.fleet.log.write_ids import WriteIds
from lakebed.fleet.node import attached, changes, indices, reads, timeline, timeline_set, transaction
from lakebed.fleet.node.context import NodeContext
from lakebed.fleet.node.node import Node
from lakebed.fleet.node.serve import ControlOfStorage
from lakebed.fleet.ports import Location
from lakebed.lake import tenants as lake_tenants
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

NAMES = "behaviour/fleet/client/test_names.py"
CLIENT = "behaviour/fleet/client/test_client.py"
FAILOVER = "behaviour/fleet/control/test_failover.py"
CRASHES = "behaviour/fleet/node/test_crashes.py"
ATTACHMENTS = "behaviour/fleet/node/test_attachments.py"
RETENTION = "behaviour/fleet/node/test_retention.py"
CONTRACT = "behaviour/fleet/log/test_contract.py"
LOG_FAULTS = "behaviour/fleet/log/test_faults.py"
MACHINE = "unit/fleet/test_machine.py"
RECORD = "unit/fleet/log/test_record.py"


class Forgetful(WriteIds):
    """Write ids that are not remembered."""

    def get(self, write_id):
        """Know none."""


def take_unbegun_for_gone(find, self, id, problem, attempts):
    """Take a timeline that the log has not begun yet for one that is gone."""
    successor = find(self, id, problem, attempts)
    if successor == id and isinstance(problem, NotFound):
        raise problem
    return successor


def append_anew(append, *args, write_id, expected):
    """Append under another write id each time."""
    return append(*args, write_id=str(uuid.uuid4()), expected=expected)


GUARANTEES = [
    # ---- who may commit
    Guarantee(
        "A transaction that began from an older state is never granted.",
        never(machine.commit, lambda it: it.committed),
        f"{MACHINE}::test_an_older_base_is_rejected_for_good",
    ),
    Guarantee(
        "An attachment that may not commit is not granted.",
        never(machine.commit, lambda it: it.may_commit),
        f"{MACHINE}::test_who_may_not_commit_is_rejected_for_good",
    ),
    Guarantee(
        "A transaction is granted to its own attachment only.",
        never(machine.commit, lambda it: it.node),
        f"{MACHINE}::test_another_attachment_gets_nothing",
    ),
    Guarantee(
        "A lost reply is given again only for the manifest that was committed.",
        never(machine._again, lambda it: it.manifest),
        f"{MACHINE}::test_a_lost_reply_is_given_again_only_for_the_same_manifest",
    ),
    Guarantee(
        "A timeline does not go backwards.",
        never(machine.commit, lambda it: it.timelines),
        f"{MACHINE}::test_a_timeline_does_not_go_backwards",
    ),
    Guarantee(
        "A grant dooms every other open transaction.",
        answer(machine._grant, machine.doom, lambda original, transactions, **facts: tuple(transactions)),
        f"{MACHINE}::test_a_grant_dooms_every_other_open_transaction_and_says_what_died",
    ),
    Guarantee(
        "An open transaction is not acknowledged by force: it may still be granted.",
        never(machine.force_ack, lambda it: it.MOVES),
        "behaviour/fleet/control/test_collection.py::test_force_ack_is_for_a_rejected_transaction_only",
    ),
    Guarantee(
        "A lost local state acknowledges nothing: an older process may still write.",
        always(machine.restart, lambda it: it.local_id),
        f"{MACHINE}::test_a_lost_local_state_acknowledges_nothing",
    ),
    Guarantee(
        "A new tenant of an old name begins above its transactions.",
        change_result(machine.new_tenant, lambda made: msgspec.structs.replace(made, next_txn=1)),
        f"{MACHINE}::test_a_new_tenant_of_an_old_name_begins_above_it",
    ),
    Guarantee(
        "The source of a relocation waits for its target.",
        never(machine.commit, lambda it: it.source_waits_until_ms),
        f"{MACHINE}::test_the_source_of_a_relocation_waits_and_then_wins",
    ),
    Guarantee(
        "A record is written only over the one it was decided from.",
        forget(ledger._Write.add, lambda it: it.expected),
        "unit/fleet/test_ledger.py::test_two_processes_decide_from_what_is_there",
    ),
    Guarantee(
        "A tenant never uses ids of one of its name that came and went at the same time.",
        forget(ledger.Ledger.create, lambda it: it.expected),
        "unit/fleet/test_ledger.py::test_a_tenant_begins_above_one_that_came_and_went_meanwhile",
    ),
    Guarantee(
        "A control plane does not start over a storage that another ledger committed to.",
        raise_nothing(claim._check_owner),
        "behaviour/fleet/control/test_claim.py::test_a_second_ledger_is_refused_and_the_first_is_not",
    ),
    Guarantee(
        "A control plane does not take a new storage for a ledger whose tenants have committed elsewhere.",
        raise_nothing(claim._check_tenants),
        "behaviour/fleet/control/test_claim.py::"
        "test_a_ledger_with_tenants_is_not_taken_for_a_storage_that_has_nothing_of_them",
    ),
    Guarantee(
        "A collection of orphans by another fleet's ledger deletes nothing.",
        skip(lake_tenants.collect_orphans, claim.check_storage),
        "behaviour/fleet/control/test_claim.py::test_a_collection_by_another_fleets_ledger_deletes_nothing",
    ),
    Guarantee(
        "A write that the log puts at an LSN that the timeline had before is not acknowledged.",
        raise_nothing(client_timeline.Timeline._check_follows),
        "behaviour/fleet/test_halves.py::test_a_write_to_a_log_of_an_earlier_moment_is_not_acknowledged",
    ),
    Guarantee(
        "A new tenant does not begin with rows that the log has of another fleet's.",
        raise_nothing(ControlPlane._check_log_is_new),
        "behaviour/fleet/test_halves.py::test_a_new_tenant_does_not_begin_with_the_rows_of_another_fleets",
    ),
    Guarantee(
        "A control plane that stood still gives every node a fresh interval.",
        see(Members.overdue, lambda it: it._looked_s, float("inf")),
        "behaviour/fleet/control/test_detection.py::test_a_control_plane_that_stood_still_gives_a_fresh_interval",
    ),
    Guarantee(
        "A control plane doubts itself when more than half of the nodes fall silent.",
        always(Members.overdue, len),
        "behaviour/fleet/control/test_detection.py::test_it_doubts_itself_when_more_than_half_fall_silent_at_once",
    ),
    Guarantee(
        "A folder has one fleet.",
        answer(together.FolderLocks.__init__, together._try_lock, lambda original, descriptor: True),
        "unit/fleet/test_together.py::test_a_folder_has_one_fleet",
    ),
    # ---- what is deleted
    Guarantee(
        "What a commit replaced is not deleted before the settle time.",
        answer(Collector._collect_commit, Collector._settle_wait_s, lambda original, since_ms: 0),
        "behaviour/fleet/control/test_collection.py::test_each_commit_has_a_settle_time_of_its_own",
    ),
    Guarantee(
        "The second LIST waits for the settle time, also in another process.",
        answer(Collector._collect_rejected, Collector._settle_wait_s, lambda original, since_ms: 0),
        "behaviour/fleet/control/test_collection.py::test_a_new_control_plane_waits_before_the_second_list",
    ),
    Guarantee(
        "A hold delays a deletion.",
        answer(Collector._collect_commit, lambda it: it.is_held, lambda original, *args, **facts: False),
        "behaviour/fleet/control/test_collection.py::test_a_reader_delays_the_deletion_of_what_it_may_read",
    ),
    Guarantee(
        "A deleted tenant stays until what its rejected transactions wrote is collected.",
        answer(Collector._remove, any, lambda original, tasks: False),
        "behaviour/fleet/control/test_collection.py"
        "::test_a_deleted_tenant_stays_until_its_rejected_transactions_are_collected",
    ),
    Guarantee(
        "A deleted tenant stays until its transactions are acknowledged.",
        see(Collector._remove, lambda it: it.transactions, ()),
        "behaviour/fleet/control/test_collection.py::test_a_deleted_tenant_leaves_nothing",
    ),
    Guarantee(
        "A control plane that hung deletes nothing of a tenant that was created again meanwhile.",
        pass_on(Collector._remove, lambda it: it.tenant, fresh=False),
        "behaviour/fleet/control/test_collection.py"
        "::test_a_control_plane_that_hung_deletes_nothing_of_a_tenant_created_again",
    ),
    # ---- seals
    Guarantee(
        "A timeline that a restore has replaced, or that is deleted, takes no row any more.",
        returns(machine._timelines_to_seal, ()),
        (
            f"{NAMES}::test_a_restore_takes_the_writes_of_clients_with_an_old_route",
            f"{NAMES}::test_a_dropped_timeline_takes_no_write",
        ),
    ),
    Guarantee(
        "A drop is answered when the log takes no rows any more.",
        skip(ControlPlane.delete_tenant, lambda it: it.conclude),
        f"{NAMES}::test_a_seal_without_an_answer_is_made_before_anyone_is_told[drop tenant-False]",
    ),
    Guarantee(
        "A restore is answered when the log of the old timeline takes no rows any more.",
        skip(ControlPlane.change_timeline, lambda it: it.conclude),
        f"{NAMES}::test_a_seal_without_an_answer_is_made_before_anyone_is_told[restore-False]",
    ),
    Guarantee(
        "No route shows that a name has moved before the log is sealed.",
        skip(ControlPlane.route, lambda it: it.seal),
        f"{NAMES}::test_a_seal_without_an_answer_is_made_before_anyone_is_told[restore-False]",
    ),
    Guarantee(
        "A sealed timeline takes no append.",
        never(log_changes.Append.plan, lambda it: it.OPEN),
        f"{CONTRACT}::test_a_sealed_timeline_takes_no_append[shared memory]",
    ),
    Guarantee(
        "A seal is in the store, for every process and for the next one.",
        answer(
            log_changes.Seal.plan,
            log_changes.encode_tail,
            lambda original, tail: original(tail._replace(end=End.OPEN)),
        ),
        f"{CONTRACT}::test_what_is_sealed_or_dropped_stays_so_after_reopening[shared memory]",
    ),
    Guarantee(
        "A lakebed that does not know how a timeline has ended refuses it.",
        raise_nothing(log_timeline._read_tail),
        f"{RECORD}::test_an_end_that_is_not_known_is_refused",
    ),
    # ---- the log
    Guarantee(
        "A record that does not continue what was ingested stops the consumer.",
        raise_nothing(record.check_follows),
        f"{RECORD}::test_a_history_is_followed_and_another_one_is_not",
    ),
    Guarantee(
        "A record of another timeline is not taken for the first of this one.",
        change_arguments(record.begin, timeline=""),
        f"{RECORD}::test_a_history_is_followed_and_another_one_is_not",
    ),
    Guarantee(
        "A damaged link between records is found.",
        never(record.decode_log_record, record._link),
        f"{RECORD}::test_every_damaged_byte_is_found",
    ),
    Guarantee(
        "The same write id is one append.",
        see(log_changes.Append.plan, lambda it: it.write_ids, Forgetful()),
        f"{CONTRACT}::test_the_same_write_id_is_one_append[memory]",
    ),
    Guarantee(
        "A client that stood still does not repeat a write that the log may have forgotten.",
        set_value(backoff, lambda it: it._LATE_S, float("inf")),
        f"{CLIENT}::test_a_client_that_stood_still_does_not_write_once_more",
    ),
    Guarantee(
        "However many others write, an append that is asked again within two minutes is one append.",
        see(log_write_ids.WriteIds.settle, lambda it: it.window_s, 0),
        f"{LOG_FAULTS}::test_a_write_id_is_remembered_however_many_follow",
    ),
    Guarantee(
        "Also the next process of the log remembers the write ids that it finds, for two minutes.",
        see(log_write_ids.WriteIds.load, lambda it: it.window_s, 0),
        f"{LOG_FAULTS}::test_a_write_id_is_remembered_however_many_follow",
    ),
    Guarantee(
        "Before a log forgets a write id too soon, it takes no append.",
        returns(log_write_ids.WriteIds.is_full, False),
        f"{LOG_FAULTS}::test_a_log_that_can_remember_no_more_takes_no_append",
    ),
    Guarantee(
        "Of two appends at one position one fails.",
        skip(log_changes.Append.plan, lambda it: it.expect_tail),
        "behaviour/fleet/log/test_faults.py::test_two_processes_share_a_store",
    ),
    Guarantee(
        "A refusal from memory counts only if the store agrees.",
        skip(KeyValueLog._write_once, lambda it: it.expect_tail),
        "behaviour/fleet/log/test_faults.py::test_a_process_that_lost_its_store_reports_no_loss",
    ),
    Guarantee(
        "A read below the horizon is refused, and has no hole.",
        never(KeyValueLog.read_bodies, lambda it: it.first),
        f"{CONTRACT}::test_pruning_forgets_whole_records[memory]",
    ),
    Guarantee(
        "A read behind the end is refused: the log has lost records.",
        never(KeyValueLog.read_bodies, lambda it: it.last),
        f"{CONTRACT}::test_a_log_that_lost_records_is_noticed[memory]",
    ),
    Guarantee(
        "Memory knows which records it has no more.",
        forget(log_timeline.Timeline.forget_recent, lambda it: it.recent_after),
        "behaviour/fleet/log/test_faults.py::test_memory_for_recent_records_is_bounded",
    ),
    Guarantee(
        "A replica that lacks a message gives no record behind the hole.",
        never(jetstream_subjects.dense, lambda it: it.first_lsn),
        "unit/fleet/log/test_jetstream_subjects.py::test_records_end_at_a_hole",
    ),
    Guarantee(
        "What a node has not finished with is not acknowledged for it.",
        see(Reconciler._is_unknown, lambda it: it.is_retired, True),
        f"{FAILOVER}::test_what_a_node_may_still_write_is_not_acknowledged_for_it[it retires]",
    ),
    Guarantee(
        "What a rival of a node on another local state may write is not acknowledged for it.",
        never(Reconciler._is_unknown, lambda it: it.local_id),
        f"{FAILOVER}::test_what_a_node_may_still_write_is_not_acknowledged_for_it[another local state]",
    ),
    # ---- clients
    Guarantee(
        "What is written to a tenant that was just created waits for a log that was away.",
        replace(client_timeline.Timeline._successor, take_unbegun_for_gone),
        f"{NAMES}::test_a_new_tenant_whose_log_was_away_is_waited_for[put]",
    ),
    Guarantee(
        "A client reads what it wrote.",
        skip(client_timeline.Timeline.write, client_timeline._Reads.saw),
        "behaviour/fleet/client/test_client.py::test_it_reads_what_it_wrote",
    ),
    Guarantee(
        "A client never reads an older state than it has read before.",
        never(client_timeline._Reads.saw, lambda it: it._seen),
        "behaviour/fleet/client/test_client.py::test_a_zombie_does_not_lead_a_client_back",
    ),
    Guarantee(
        "A read of a key or of many counts as read.",
        skip(client_timeline._Reads._ask, client_timeline._Reads.saw),
        "behaviour/fleet/client/test_client.py::test_no_read_goes_back_behind_what_a_read_has_shown[get_many]",
    ),
    Guarantee(
        "A scan that its caller leaves before the end counts as read.",
        skip(client_timeline._Reads._batches, client_timeline._Reads.saw),
        "behaviour/fleet/client/test_client.py::test_no_read_goes_back_behind_what_a_read_has_shown[a part of a scan]",
    ),
    Guarantee(
        "A view of an LSN stays with its timeline when the name moves to another.",
        never(client_timeline._Reads.id, lambda it: it._stays),
        f"{NAMES}::test_a_view_stays_with_its_timeline",
    ),
    Guarantee(
        "A write without a reply is not done twice.",
        answer(client_timeline.Timeline.write, lambda it: it.append, append_anew),
        "behaviour/fleet/client/test_client.py::test_a_lost_reply_of_an_append_writes_once",
    ),
    Guarantee(
        "A row of a scan that was interrupted comes once.",
        answer(client_timeline._Reads._batches, lambda it: it.as_py, lambda as_py: as_py()[:-1]),
        "behaviour/fleet/client/test_scans.py::test_a_scan_over_a_failover_has_each_row_once_as_of_one_lsn",
    ),
    Guarantee(
        "The rest of a scan that was interrupted is of the same LSN.",
        answer(client_timeline._Reads._batches, client_timeline._lsn_of, lambda original, batch: None),
        "behaviour/fleet/client/test_scans.py::test_a_scan_over_a_failover_has_each_row_once_as_of_one_lsn",
    ),
    Guarantee(
        "A client whose route is old writes to the timeline that has the name now.",
        see(client_timeline.Timeline.write, Conflict, ZeroDivisionError),
        f"{NAMES}::test_a_restore_takes_the_writes_of_clients_with_an_old_route",
    ),
    Guarantee(
        "An LSN that was expected of the timeline before a restore is not taken for one of the restored.",
        raise_nothing(client_timeline.Timeline.write),
        f"{NAMES}::test_an_expected_lsn_of_before_a_restore_is_refused",
    ),
    Guarantee(
        "Branches and pins are of the timeline that has the name now.",
        answer(
            client_timeline.Timeline.change,
            lambda it: it.current_id,
            lambda current_id, name, attempts: current_id.__self__.timeline_id(name, attempts=attempts),
        ),
        f"{NAMES}::test_branches_pins_and_ends_are_of_the_restored_timeline",
    ),
    Guarantee(
        "What a restore has kept under another name is not dropped by a client whose route is old.",
        several(
            answer(
                client_timeline.Timeline.change,
                lambda it: it.current_id,
                lambda current_id, name, attempts: current_id.__self__.timeline_id(name, attempts=attempts, fresh=True),
            ),
            raise_nothing(changes.find_target),
        ),
        f"{NAMES}::test_what_a_restore_has_kept_is_not_dropped_by_its_name_of_before",
    ),
    Guarantee(
        "A timeline is dropped by the name that it has when it goes.",
        raise_nothing(changes.find_target),
        f"{NAMES}::test_a_drop_that_meets_a_restore_is_refused",
    ),
    Guarantee(
        "A timeline that is committed is read, also where its node has not heard of the commit.",
        see(routing.Router.check_behind, lambda it: it.kind, "another"),
        f"{CLIENT}::test_the_source_of_a_relocation_that_takes_over_again_hides_nothing",
    ),
    Guarantee(
        "A timeline that is committed is listed, also where its node has not heard of the commit.",
        returns(routing.Router.has_all, True),
        f"{CLIENT}::test_the_source_of_a_relocation_that_takes_over_again_hides_nothing",
    ),
    Guarantee(
        "A client whose route is old does not say that a timeline that was made since is not there.",
        answer(
            routing.Router.current_id,
            lambda it: it.ask_route,
            lambda ask_route, attempts: ask_route.__self__.route(fresh=True),
        ),
        f"{NAMES}::test_only_the_control_plane_says_that_there_is_no_timeline",
    ),
    Guarantee(
        "Record and manifest of a state are of one transaction.",
        always(client.Tenant._read_state, lambda it: it.txn),
        f"{CLIENT}::test_a_state_is_of_one_transaction",
    ),
    # ---- nodes
    Guarantee(
        "A manifest that is not the one that was committed is refused.",
        raise_nothing(manifest.decode_referenced),
        "unit/fleet/node/test_manifest.py::test_a_reference_pins_the_bytes",
    ),
    Guarantee(
        "A file that died is put on the deadlist.",
        see(transaction.OpenTransaction.freeze, lambda it: it._base_paths, frozenset()),
        f"{CRASHES}::test_requests_of_each_step",
    ),
    Guarantee(
        "A path that was minted and is not named is put on the deadlist.",
        see(transaction.OpenTransaction.freeze, lambda it: it._minted, {}),
        f"{CRASHES}::test_late_landing_after_the_commit",
    ),
    Guarantee(
        "A file that another timeline names does not go on the deadlist.",
        answer(
            transaction.OpenTransaction.freeze,
            transaction.all_paths,
            lambda original, tenant, timelines: original(tenant, timelines[:1]),
        ),
        "behaviour/fleet/node/test_reads.py::test_a_pin_is_read_at_its_lsn_alone",
    ),
    Guarantee(
        "Minted paths survive a restart, so that their late puts are on the deadlist.",
        see(transaction.OpenTransaction.__init__, lambda it: it.minted, ()),
        f"{CRASHES}::test_crash_at_every_store_call[CRASH_LATE-restart]",
    ),
    Guarantee(
        "After a restart, what the local state does not know is deleted.",
        answer(attached.AttachedTenant._open_transaction, lambda it: it.delete_unknown, lambda delete_unknown: 0),
        f"{CRASHES}::test_unknown_objects_are_deleted_after_a_restart",
    ),
    Guarantee(
        "Nothing is uploaded from the freeze of a commit to its answer.",
        see(attached.AttachedTenant._may_write, lambda it: it.request, None),
        f"{CRASHES}::test_a_lost_answer_is_asked_again",
    ),
    Guarantee(
        "A rejection is remembered across restarts.",
        skip(attached.AttachedTenant._break, lambda it: it.remember),
        f"{CRASHES}::test_a_rejection_is_written_down_before_it_is_acknowledged",
    ),
    Guarantee(
        "A rejected attachment writes nothing any more.",
        skip(attached.AttachedTenant._break, attached.AttachedTenant._give_up),
        f"{CRASHES}::test_rejection_is_remembered",
    ),
    Guarantee(
        "A detached generation is refused, also when its location comes late.",
        never(Node.put_location, lambda it: it.generation),
        f"{ATTACHMENTS}::test_stale_and_repeated_locations",
    ),
    Guarantee(
        "A location of an older generation is refused.",
        raise_nothing(attached.AttachedTenant.put_location),
        f"{ATTACHMENTS}::test_stale_and_repeated_locations",
    ),
    Guarantee(
        "A delayed location does not undo a newer one, nor let a stale attachment write again.",
        returns(attached.AttachedTenant._is_late, False),
        (
            f"{ATTACHMENTS}::test_a_stale_attachment_does_not_commit_again",
            f"{ATTACHMENTS}::test_a_location_that_was_delayed_does_not_undo_a_newer_one",
        ),
    ),
    Guarantee(
        "Nothing is committed before the control plane knows what a new process has resumed.",
        see(attached.AttachedTenant.commit_once, lambda it: it.is_reported, True),
        f"{CRASHES}::test_a_restart_without_the_control_plane",
    ),
    Guarantee(
        "A log with another history stops the timeline.",
        answer(timeline.Timeline._take, timeline.check_follows, lambda original, key, mark, found: found.mark),
        f"{ATTACHMENTS}::test_another_history_stops_the_timeline",
    ),
    Guarantee(
        "A branch does not read its parent's later rows.",
        answer(indices.branch_index, lambda it: it.through, lambda through, lsn: through.__self__),
        "behaviour/fleet/node/test_reads.py::test_random_steps",
    ),
    Guarantee(
        "A pin is not ended by the node's clock alone.",
        replace(NodeContext.agreed_ms, lambda original, self: self.now_ms()),
        f"{RETENTION}::test_one_clock_that_is_wrong_ends_no_pin",
    ),
    Guarantee(
        "A pin is not ended by the control plane's clock alone.",
        replace(NodeContext.agreed_ms, lambda original, self: self._control_ms()),
        f"{RETENTION}::test_one_clock_that_is_wrong_ends_no_pin",
    ),
    Guarantee(
        "A pin lives as long as it was to live, also when its node's clock is slow.",
        replace(NodeContext.end_ms, lambda original, self, lifetime_ms: self.now_ms() + lifetime_ms),
        f"{RETENTION}::test_one_clock_that_is_wrong_ends_no_pin",
    ),
    Guarantee(
        "A branch is made at a committed LSN.",
        raise_nothing(changes._branch),
        f"{ATTACHMENTS}::test_refused_changes",
    ),
    Guarantee(
        "Rows in memory are kept when an attachment is replaced.",
        skip(timeline_set.TimelineSet.show, timeline.Timeline.adopt),
        f"{ATTACHMENTS}::test_a_relocation_keeps_rows_in_memory",
    ),
    Guarantee(
        "Rows in memory above a row that is not in the base are read from the log again.",
        never(timeline.Timeline.adopt, lambda it: it.first_sequence),
        f"{ATTACHMENTS}::test_rows_in_memory_that_do_not_follow_the_base_are_read_again",
    ),
    Guarantee(
        "A pruned log makes the node ask, and learn its rejection.",
        never(attached.AttachedTenant.ingest_timeline, attached.is_pruned),
        f"{ATTACHMENTS}::test_a_pruned_log_means_a_rejection",
    ),
    Guarantee(
        "A missing file makes the node ask, and learn its rejection.",
        skip(reads.Reads.file_gone, attached.AttachedTenant.ask),
        f"{ATTACHMENTS}::test_a_missing_file_means_a_rejection",
    ),
    Guarantee(
        "A request that was delayed until after a timeline was deleted does not make it again.",
        skip(attached.AttachedTenant.apply_change, attached.check_not_gone),
        f"{ATTACHMENTS}::test_a_delayed_request_does_not_make_a_timeline_again",
    ),
    Guarantee(
        "Ids of deleted timelines are remembered over further commits.",
        see(transaction.OpenTransaction._manifest, lambda it: it.gone, ()),
        f"{ATTACHMENTS}::test_a_delayed_request_does_not_make_a_timeline_again",
    ),
    Guarantee(
        "A working set that cannot be read is not resumed.",
        always(Node._resumable, lambda it: it.can_resume),
        "behaviour/fleet/node/test_defects.py::test_a_working_set_that_cannot_be_read_is_not_resumed",
    ),
    Guarantee(
        "Versions are kept for the age of the policy.",
        see(timeline.Timeline.advance_cutoff, lambda it: it.retain_ms, 0),
        "behaviour/fleet/node/test_retention.py::test_versions_are_kept_for_their_age",
    ),
    Guarantee(
        "The cutoff does not pass a scan that runs.",
        see(timeline.Timeline.advance_cutoff, lambda it: it._scans, {}),
        "behaviour/fleet/node/test_retention.py::test_a_scan_that_runs_holds_its_state",
    ),
    Guarantee(
        "A wall clock that is set ages no row.",
        replace(timeline.Timeline._now_ms, lambda original, self: self._clock.now_ms()),
        "behaviour/fleet/node/test_retention.py::test_a_wall_clock_that_is_set_ages_nothing",
    ),
    Guarantee(
        "A node that was told to forget a tenant takes its next attachment.",
        answer(
            Reconciler._detachments, Location, lambda original, tenant, last, mode: original(tenant, last + 1, mode)
        ),
        "behaviour/fleet/control/test_failover.py::test_a_node_that_was_told_to_forget_a_tenant_takes_it_again",
    ),
    Guarantee(
        "Commands on a copy of a lake change nothing in the fleet of the original.",
        returns(address.is_served, True),
        "behaviour/fleet/client/test_connections.py::test_a_copy_of_a_lake_does_not_reach_the_fleet_of_the_original",
    ),
    Guarantee(
        "A node commits nothing that the storage lacks after it was put back from an older copy.",
        returns(transaction.lacks_layers, False),
        "behaviour/fleet/node/test_defects.py::test_a_transaction_whose_layers_are_gone_is_not_resumed[False]",
    ),
    Guarantee(
        "A node writes nothing for a fleet of another storage, which has got the URL of its control plane.",
        raise_nothing(ControlOfStorage.register),
        "behaviour/fleet/node/test_http.py::test_a_node_joins_no_fleet_of_another_storage",
    ),
]
