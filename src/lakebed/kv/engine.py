"""The engine of an open database, which is built from a claim and from the log.

Owns: how a claim becomes a tree. Invariants: the tree begins with exactly the files that the writer's checkpoint pins.
Rows that are only in the log are in memory before the first read.
"""

from __future__ import annotations

from typing import NamedTuple

from lakebed.errors import Fenced, NotFound
from lakebed.kv.checkpoint_refs import CheckpointRefs
from lakebed.kv.claim import Claim
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.group_commit import LogGroups
from lakebed.kv.layout import sst_path
from lakebed.kv.locations import Locations
from lakebed.kv.model import Manifest
from lakebed.kv.options import DatabaseOptions
from lakebed.kv.publisher import CompactorPublisher, WriterPublisher
from lakebed.kv.recovery import replay
from lakebed.kv.wal import WalLog
from lakebed.lsm.cache import BlockCache, block_cache
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.operators import MergeOperator, find_operator
from lakebed.lsm.tree import Tree


class Engine(NamedTuple):
    """The parts of an open database that handle files and rows."""

    tree: Tree
    publisher: WriterPublisher
    refs: CheckpointRefs
    groups: LogGroups | None
    """None: the database has no log."""
    cache: BlockCache
    operator: MergeOperator | None


def start_engine(location: DatabaseLocation, claim: Claim, *, options: DatabaseOptions) -> Engine:
    """Read the rows of the log that are not in files of the claim's manifest, and set up the engine with both.

    Raises:
        InvalidRequest: the stored merge operator is not registered.
        Corruption, UnsupportedFormat: the log cannot be read.
        Fenced, Conflict: another claim was faster.
    Cost: 1 LIST of the log, and 1 GET for each log object that is not in files yet.
    """
    manifest, environment = claim.manifest, location.environment
    recovered = replay(
        location, manifest, through=claim.fence_id, table_bytes_max=options.l0_sst_bytes, epoch=claim.epoch
    )
    # The newest table stays active: its rows are in the log, so they need no flush.
    newest = recovered.pop() if recovered and recovered[-1].size_bytes < options.l0_sst_bytes else None
    cache = block_cache()
    if options.cache_bytes is not None:
        cache = BlockCache(options.cache_bytes, runtime=environment.runtime)
    refs = CheckpointRefs(shown=lambda: tree.file_set, runtime=environment.runtime)
    pinned_manifest = _load_pinned_manifest(claim)
    publisher = WriterPublisher(
        location,
        log=claim.log,
        epoch=claim.epoch,
        manifest=pinned_manifest,
        checkpoint_id=_checkpoint_id(claim),
        refs=refs,
        file_count_max=options.file_count_max,
        compactor=CompactorPublisher(
            location, log=claim.log, epoch=claim.compactor_epoch if claim.owns_compaction else None
        ),
    )
    operator = None if manifest.merge_operator is None else find_operator(manifest.merge_operator)
    tree = Tree(
        FileStore(
            location.store,
            path_of=sst_path,
            locate=Locations(location, manifest).locate,
            cache=cache,
            options=FileOptions(block_bytes=options.block_bytes, bits_per_key=options.filter_bits_per_key),
            environment=environment,
        ),
        file_set=publisher.file_set,
        first_sequence=max([manifest.last_sequence, *(table.last_sequence for table in recovered)]) + 1,
        options=options,
        publisher=publisher,
        operator=operator,
        recovered=[(table, table.last_wal_id) for table in recovered],
    )
    if newest is not None:
        tree.active = newest
    if pinned_manifest is not manifest:
        tree.poll_once()  # a compactor published during the opening: show its version
    groups = _log_groups(location, claim, tree, options=options) if options.wal_enabled else None
    return Engine(tree, publisher, refs, groups, cache, operator)


def _log_groups(location: DatabaseLocation, claim: Claim, tree: Tree, *, options: DatabaseOptions) -> LogGroups:
    return LogGroups(
        WalLog(location),
        epoch=claim.epoch,
        last_wal_id=claim.fence_id,
        active=lambda: tree.active,
        lock=tree.lock,
        spacing_ms=options.wal_flush_spacing_ms,
        environment=location.environment,
    )


def _checkpoint_id(claim: Claim) -> str:
    assert claim.checkpoint_id is not None, "only a writer's claim has a checkpoint"
    return claim.checkpoint_id


def _load_pinned_manifest(claim: Claim) -> Manifest:
    """Load the manifest that the writer's checkpoint pins: the claim's, unless other processes have published since."""
    checkpoint = claim.manifest.checkpoint(_checkpoint_id(claim))
    if checkpoint is None or checkpoint.manifest_id == claim.manifest.manifest_id:
        return claim.manifest
    try:
        return claim.log.load(checkpoint.manifest_id)
    except NotFound as missing:  # a newer owner has dropped our checkpoint, and a collector has run since
        raise Fenced(
            f"While a database was being opened for writing (epoch {claim.epoch}), another process took it: open it "
            "again only if that one should end.",
            epoch=claim.epoch,
        ) from missing
