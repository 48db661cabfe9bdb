"""Each repair of databases undone, by patching it out here: some race must break a promise within two hundred seeds.

A mutation names the scenarios that are dense in what it is about; everything else is as in `test_kv_races`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakebed.errors import InvalidRequest, OutcomeUnknown
from lakebed.kv import checkpoint as checkpoint_module
from lakebed.kv import (
    claim,
    clone,
    collect,
    destroy,
    publisher,
    read_version,
    reclaim,
    recovery,
    restore,
    verbs,
    writer,
)
from lakebed.kv.checkpoint_refs import CheckpointRefs
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.group_commit import LogGroups
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Checkpoint, Manifest, Owner
from lakebed.kv.pins import find_pin
from lakebed.kv.tail import LogTail
from lakebed.kv.wal import WalLog
from lakebed.lsm import compact as lsm_compact
from lakebed.lsm import file_id, resolve
from lakebed.lsm import flush as lsm_flush
from lakebed.lsm.cache import RowCache
from lakebed.lsm.model import Kind
from lakebed.lsm.tree import Tree
from worlds.kv.scenarios import SIMULATION
from worlds.undone import Mutation, Patch, Undone

UNDONE = Undone(SIMULATION, "databases")
undone_in = UNDONE.in_scenario


# ---- what a collector rests on


def judging(patch: Patch, **changes: Any) -> None:
    """Let the collector's judgement have other facts than it looked up."""
    begin = reclaim._Judgement.__init__

    def init(self: Any, *args: Any, **facts: Any) -> None:
        begin(self, *args, **facts)
        for name, change in changes.items():
            setattr(self, name, change(getattr(self, name)))

    patch.setattr(reclaim._Judgement, "__init__", init)


@undone_in("compactors")
def only_pinned_versions_count(patch: Patch) -> None:
    """Repair 1: the newest manifest is not among those whose files stay."""
    judging(patch, _named=lambda named: frozenset())


@undone_in("checkpoints", seed=4)
def no_boundary(patch: Patch) -> None:
    """Repair 2: manifests go without their numbers being passed first."""
    patch.setattr(ManifestLog, "raise_boundary", lambda self, below, *, manifest: None)


@undone_in("repeated_claims", seed=21)
def fences_are_collected(patch: Patch) -> None:
    """Repair 2: a fence goes like any other log object."""
    patch.setattr(reclaim, "FENCE_BYTES", -1)


@undone_in("compactors", seed=37)
def jobs_protect_nothing(patch: Patch) -> None:
    """Repair 4: the start of a running job is not in the cutoff."""
    judging(patch, _first_unpublished=lambda start: None)


@undone_in("readers", seed=4)
def unpublished_files_are_garbage(patch: Patch) -> None:
    """Repair 4: what is newer than the newest level-0 file is judged like the rest."""
    judging(patch, _manifest=lambda manifest: msgspec.structs.replace(manifest, newest_l0_id="Z" * 26))


@undone_in("takeovers")
def ids_in_any_order(patch: Patch) -> None:
    """Repair 4: a writer's file ids follow the clock alone, not the ids that it has seen."""
    patch.setattr(
        publisher, "mint_file_id", lambda after=None, *, environment: file_id.mint_file_id(environment=environment)
    )


@undone_in("checkpoints", seed=24)
def old_versions_stay_pinnable(patch: Patch) -> None:
    """Versions are not announced before they are taken apart."""
    patch.setattr(collect, "needs_sealing", lambda manifest, **facts: False)


@undone_in("corruptions")
def missing_versions_protect_nothing(patch: Patch) -> None:
    """Repair 11: a checkpoint whose manifest is missing protects no file."""
    judging(patch, _protected_ms=lambda time_ms: None)


@undone_in("generations", seed=27)
def our_entry_goes_before_their_pin(patch: Patch) -> None:
    """A clone that lets go of an ancestor forgets it first, and removes its pin there afterwards."""

    def detach(self: Any, entries: Any, decided: Any) -> tuple[tuple[str, ...], list[str]]:
        released = {entry.pin for entry in entries}
        if entries:
            self._log.update(
                lambda manifest: msgspec.structs.replace(
                    manifest,
                    external_databases=tuple(
                        database for database in manifest.external_databases if database.pin not in released
                    ),
                )
            )
        for entry in entries:
            collect.release_pin(self._location.other(entry.url), entry.pin, clone=self._location, decided=decided)
        return (), []

    patch.setattr(collect._Round, "_detach", detach)


@undone_in("generations", seed=26)
def ancestors_are_let_go_too_early(patch: Patch) -> None:
    """A clone lets go of ancestors whose files only its pinned versions name."""
    detachable = collect.detachable
    patch.setattr(collect, "detachable", lambda manifest, pinned: detachable(manifest, {}))


# ---- fencing


@undone_in("takeovers", seed=20)
def no_fence(patch: Patch) -> None:
    """Repair 3: the epoch alone must keep older writers out."""
    patch.setattr(claim, "_fence", lambda place, wal, claimed, *, next_id: next_id - 1)


@undone_in("repeated_claims", seed=10)
def no_second_look_at_the_log(patch: Patch) -> None:
    """Repair 3: the number that was listed before the epoch is taken, though files may cover it since."""
    fence = claim._fence

    def blind(place: DatabaseLocation, wal: WalLog, claimed: Manifest, *, next_id: int) -> int:
        return fence(place, wal, msgspec.structs.replace(claimed, replay_after_wal_id=0), next_id=next_id)

    patch.setattr(claim, "_fence", blind)


class Everyone(int):
    """An epoch that every other one is equal to."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


@undone_in("takeovers", seed=59)
def every_writer_has_ended(patch: Patch) -> None:
    """A claim makes no fence, whatever the lease says of the writer before it."""
    look = claim.check_not_owned
    patch.setattr(
        claim, "check_not_owned", lambda *args, **facts: look(*args, **facts)._replace(ended_epoch=Everyone())
    )


@undone_in("repeated_claims", seed=175)
def any_end_will_do(patch: Patch) -> None:
    """A claim makes no fence when the lease says that some writer ended, though another one came after it."""
    look = claim.check_not_owned

    def of_any(*args: Any, **facts: Any) -> Any:
        present = look(*args, **facts)
        return present if present.ended_epoch is None else present._replace(ended_epoch=Everyone())

    patch.setattr(claim, "check_not_owned", of_any)


@undone_in("takeovers", seed=11)
def flushes_by_any_writer(patch: Patch) -> None:
    """Repair 3: a flush is published although the writer has changed."""
    patch.setattr(publisher.WriterPublisher, "_check_epoch", lambda self, manifest: None)


@undone_in("rivals", seed=5)
def linearizable_by_hearsay(patch: Patch) -> None:
    """Repair 14: a linearizable get does not look at the fence."""
    patch.setattr(writer.WriterCore, "confirm_owner", lambda self: self.commit.durable_sequence)


@undone_in("roles", seed=24)
def compactions_by_any_process(patch: Patch) -> None:
    """A compaction is published although the compactor or its job has changed."""
    replace_inputs = publisher.CompactorPublisher.replace_inputs

    def anyhow(self: Any, manifest: Manifest, job: Any, task: Any, run: Any) -> Manifest | None:
        jobs = [item for item in manifest.jobs if item.id == job.id]
        if not jobs:
            owner = publisher.Job(job.id, "compaction", job._last_id, manifest.compactor_epoch, 0)
            manifest = msgspec.structs.replace(manifest, jobs=(*manifest.jobs, owner))
        return replace_inputs(self, manifest, job, task, run)

    patch.setattr(publisher.CompactorPublisher, "replace_inputs", anyhow)
    patch.setattr(publisher.CompactorPublisher, "check_epoch", lambda self, manifest: None)


@undone_in("restores", seed=6)
def sequences_of_the_past(patch: Patch) -> None:
    """A restore continues with the sequences of the restored version."""
    patch.setattr(restore, "_last_sequence", lambda place, manifest, fence_id: 0)


@undone_in("rereading")
def readers_keep_what_was_undone(patch: Patch) -> None:
    """A reader does not purge the tables of a log that a restore has passed."""
    patch.setattr(LogTail, "_drop_through", lambda self, wal_id: None)


@undone_in("restores", seed=4)
def restores_by_any_process(patch: Patch) -> None:
    """A restore is published although another writer has come since."""
    patch.setattr(restore, "_check_ours", lambda manifest, claim, url: None)


@undone_in("rereading", seed=85)
def readers_believe_any_record(patch: Patch) -> None:
    """A reader applies records of an epoch that its manifest does not know."""
    follow = LogTail.follow

    def trusting(self: LogTail, newest: Manifest, **facts: Any) -> bool:
        return follow(self, msgspec.structs.replace(newest, writer_epoch=1 << 60), **facts)

    patch.setattr(LogTail, "follow", trusting)


# ---- writing


@undone_in("takeovers", seed=5)
def unclear_records_are_dropped(patch: Patch) -> None:
    """A group whose outcome is unclear makes place for the next one."""
    append = LogGroups.append_oldest

    def dropping(self: LogGroups) -> int:
        try:
            return append(self)
        except OutcomeUnknown:
            self._sealed = self._sealed[1:]
            raise

    patch.setattr(LogGroups, "append_oldest", dropping)
    patch.setattr("lakebed.objects.create_once.TRIES_MAX", 1)


@undone_in("unawaited_writes")
def files_before_the_log(patch: Patch) -> None:
    """A memtable is flushed before its rows are in the log."""
    flush_once = writer.WriterCore.flush_once

    def early(self: Any) -> bool:
        wait_durable, self.commit.wait_durable = self.commit.wait_durable, lambda sequence: None
        try:
            return flush_once(self)
        finally:
            self.commit.wait_durable = wait_durable

    patch.setattr(writer.WriterCore, "flush_once", early)


@undone_in("hot", seed=13)
def rows_cached_too_late(patch: Patch) -> None:
    """A row that was read before a flush is cached after it."""
    put = RowCache.put
    patch.setattr(
        RowCache, "put", lambda self, key, value, *, generation: put(self, key, value, generation=self.generation)
    )


@undone_in("scans", seed=36)
def scans_hold_nothing(patch: Patch) -> None:
    """The writer's checkpoint moves on under open scans."""
    ids_in_use = CheckpointRefs.ids_in_use

    def newest_only(self: CheckpointRefs) -> frozenset[str]:
        ids_in_use(self)
        return frozenset(ref.checkpoint_id for _, ref in self._recent)

    patch.setattr(CheckpointRefs, "ids_in_use", newest_only)


@undone_in("threads", seed=4)
def nothing_was_written_since(patch: Patch) -> None:
    """Transactions and set_if do not look whether others wrote in between."""
    patch.setattr(Tree, "written_since", lambda self, key, sequence: False)


@undone_in("threads", seed=2)
def anything_is_expected(patch: Patch) -> None:
    """A conditional write takes what memory has of the expected keys for what was expected."""
    patch.setattr(Tree, "surely_is", lambda self, key, value: True)


@undone_in("threads")
def snapshots_show_what_is_pending(patch: Patch) -> None:
    """A linearizable snapshot shows rows that are not durable yet."""
    view_locked = Tree.view_locked
    patch.setattr(Tree, "view_locked", lambda self, **through: view_locked(self))


@undone_in("takeovers")
def nothing_is_replayed(patch: Patch) -> None:
    """An owner that opens a database takes its files for all."""
    patch.setattr(recovery, "read_records", lambda *args, **facts: iter(()))


@undone_in("endings", seed=56)
def what_ended_leaves_no_trace(patch: Patch) -> None:
    """Repair 13: compaction drops expired rows, also where older versions lie below."""
    compact = resolve.compact_rows

    def dropping(window: pa.Table, *, now_ms: int, **facts: Any) -> pa.Table:
        kept = compact(window, now_ms=now_ms, **facts)
        sequences = pc.if_else(
            pc.fill_null(pc.less_equal(window["expires_at_ms"], now_ms), False), window["sequence"], None
        )
        gone = pc.and_(
            pc.is_in(kept["sequence"], value_set=pa.array(sequences.drop_null().to_pylist(), pa.uint64())),
            pc.equal(kept["kind"], pa.scalar(int(Kind.DELETE), pa.uint8())),
        )
        return kept.filter(pc.invert(gone))

    for module in (resolve, lsm_compact, lsm_flush):
        patch.setattr(module, "compact_rows", dropping)


# ---- checkpoints


@undone_in("checkpoints")
def the_log_is_not_listed(patch: Patch) -> None:
    """Repair 7: a checkpoint of the latest from outside takes the manifest's word for where the log ends."""

    def known(place: DatabaseLocation, manifest: Manifest) -> int:
        return max(manifest.wal_id_last_seen, manifest.replay_after_wal_id)

    for module in (checkpoint_module, read_version):
        patch.setattr(module, "last_durable_wal_id", known)


@undone_in("checkpoints")
def the_log_may_have_gone_on(patch: Patch) -> None:
    """A checkpoint of the latest pins a manifest that is there, though the log has gone on since."""
    find = checkpoint_module.find_same_version
    patch.setattr(
        checkpoint_module,
        "find_same_version",
        lambda manifest, log, *, now_ms, last_wal_id: find(manifest, log, now_ms=now_ms, last_wal_id=0),
    )


@undone_in("checkpoints", seed=9)
def the_dead_are_used(patch: Patch) -> None:
    """Repair 8: an expired checkpoint is opened, prolonged and taken for a source."""
    find = checkpoint_module.find_checkpoint

    def timeless(manifest: Manifest, id_or_name: str, *, now_ms: int, url: str) -> Checkpoint:
        return find(manifest, id_or_name, now_ms=0, url=url)

    for module in (checkpoint_module, read_version, restore, clone):
        patch.setattr(
            module,
            "find_checkpoint",
            lambda manifest, id_or_name, *, now_ms, url: find(manifest, id_or_name, now_ms=0, url=url),
        )


@undone_in("checkpoints")
def unknown_checkpoints_are_fine(patch: Patch) -> None:
    """Repair 9: prolonging what is not there succeeds."""
    refresh = verbs.refresh_checkpoint

    def lenient(place: DatabaseLocation, id_or_name: str, *args: Any, **facts: Any) -> Checkpoint:
        try:
            return refresh(place, id_or_name, *args, **facts)
        except InvalidRequest:
            return Checkpoint(id_or_name, 1, 0, Owner("user"))

    patch.setattr(verbs, "refresh_checkpoint", lenient)


@undone_in("generations", seed=26)
def pins_of_others_may_go(patch: Patch) -> None:
    """Repair 9: a clone's pin is deleted without force."""
    delete = verbs.delete_checkpoint
    patch.setattr(verbs, "delete_checkpoint", lambda place, id_or_name, **facts: delete(place, id_or_name, force=True))


@undone_in("checkpoints", seed=1)
def lifetimes_in_seconds(patch: Patch) -> None:
    """Repair 10: what is left of a second is cut off, and nothing is for ever."""
    in_ms = checkpoint_module.lifetime_in_ms

    def cut(lifetime: timedelta | None) -> int | None:
        result = in_ms(lifetime)
        return None if result is None or result < 1000 else result // 1000 * 1000

    patch.setattr(checkpoint_module, "lifetime_in_ms", cut)


# ---- clones, destruction


@undone_in("clones", seed=6)
def clones_pin_last(patch: Patch) -> None:
    """Repair 5: the clone's manifest is written before its pin in the parent."""
    kept_rows: dict[str, Checkpoint] = {}
    pin, keep = clone._Attempt._pin, clone.keep_pin

    def unpinned(self: Any) -> Any:
        base = pin(self)
        for entry in base.entries:
            result = find_pin(ManifestLog(self._location.other(entry.url)).latest(), entry.pin)
            if result is not None:
                kept_rows[entry.pin] = result
        self._release(base.entries)
        return base

    def keep_late(
        place: DatabaseLocation, pin: str, *, lifetime: timedelta | None, must_be_open: bool
    ) -> Checkpoint | None:
        def change(manifest: Manifest) -> Manifest | None:
            if pin not in kept_rows or find_pin(manifest, pin) is not None:
                return None
            return msgspec.structs.replace(manifest, checkpoints=(*manifest.checkpoints, kept_rows[pin]))

        ManifestLog(place).update(change, fresh=True)
        return keep(place, pin, lifetime=lifetime, must_be_open=must_be_open)

    patch.setattr(clone._Attempt, "_pin", unpinned)
    patch.setattr(clone, "keep_pin", keep_late)


@undone_in("clones", seed=1)
def any_clone_will_do(patch: Patch) -> None:
    """Repair 5: a retry takes any clone that is there for its own."""
    patch.setattr(clone._Attempt, "_check_same", lambda self, there: None)


@undone_in("generations", seed=26)
def one_pin_for_all_generations(patch: Patch) -> None:
    """Repair 6: a clone of a clone relies on the pin that the one in the middle has."""
    patch.setattr(clone._Attempt, "_pin_in", lambda self, url, *, source: source)


@undone_in("clones", seed=1)
def losers_keep_their_pins(patch: Patch) -> None:
    """Repair 12: who loses the race for a target leaves its pins behind."""
    patch.setattr(clone._Attempt, "_release", lambda self, entries: None)


@undone_in("destructions", seed=1)
def destruction_asks_nobody(patch: Patch) -> None:
    """A hard destruction does not look at the checkpoints that live."""
    patch.setattr(destroy, "_check_unpinned", lambda manifest, place, **facts: None)


@undone_in("generations", seed=1)
def the_destroyed_keep_their_pins(patch: Patch) -> None:
    """A destroyed clone leaves its pins in its ancestors."""
    patch.setattr(destroy, "release_pin", lambda place, pin, **rest: True)


@undone_in("destructions", seed=3)
def the_destroyed_can_be_claimed(patch: Patch) -> None:
    """A database is opened for writing in any state."""
    patch.setattr(claim, "check_open", lambda manifest, url: manifest)


@pytest.mark.parametrize(("mutation", "scenario", "seed"), UNDONE.cases)
def test_each_repair_undone_is_found(
    mutation: Mutation, scenario: str, seed: int | None, monkeypatch: Patch, found_at_seed: Callable[..., None]
) -> None:
    """Without this repair some race breaks a promise within two hundred seeds."""
    UNDONE.find(mutation, scenario, seed, monkeypatch, found_at_seed)
