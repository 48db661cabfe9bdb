"""The open transaction of a tenant on a node: the timelines as they will be committed, and every object written so far.

Owns: the working set, which is in memory and in the local state, so that a change of it costs no request; the minted
paths; the deadlist.

Invariants:
- Every path that was minted is, at the commit, in the manifest or on the deadlist. Nothing that was named is
  deleted here: a put whose reply was lost may land after a delete, and the prefix of a committed transaction is never
  listed.
- An object of another transaction goes on the deadlist when no timeline names it any more.
- After `freeze`, nothing is minted or published until the request is answered, so a repeated request is the same. No
  object is written in a transaction after its manifest.
- A path is in the local state before anything is put there, and a request before it is sent.

Does not know: memtables, logs, the control plane's answers. The caller holds the tenant's turn in each call that
changes something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from lakebed.errors import AlreadyExists, InternalError, Unavailable
from lakebed.fleet.layout import deadlist_of, deadlist_path, manifest_path, txn_folder
from lakebed.fleet.manifest import Deadlist, decode_manifest, encode_deadlist, encode_manifest, refer
from lakebed.fleet.model import GONE_MAX, Manifest, ManifestRef, Progress, TimelineIndex
from lakebed.fleet.node.indices import all_paths, paths_of
from lakebed.fleet.node.local import LocalState, LocalTenant
from lakebed.fleet.ports import CommitRequest
from lakebed.objects.create_once import put_new
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan, Deletable
from lakebed.reclaim.sweep import Sweeper

_ATTEMPT: Final = 1
"""The number of the only attempt: a transaction repeats its request with one manifest until it is answered."""


class OpenTransaction:
    """The right to write objects for a tenant, and what was written with it.

    Args:
        record: its record, as it is or will be in the local state.
        base: the state from which it began.
        timelines: the state as it is now; `base`'s unless the transaction is resumed.
        node: our name.
    """

    def __init__(
        self,
        record: LocalTenant,
        *,
        base: Manifest,
        timelines: Iterable[TimelineIndex],
        node: str,
        storage: ObjectStore,
        local: LocalState,
    ) -> None:
        self.base = base
        self.is_sent = record.request is not None
        """The request may have reached the control plane."""
        self.is_rejected = False
        self.layer_bytes = 0
        """Bytes of the files that were written in this transaction and that a timeline names now."""
        self._record = record
        self._node = node
        self._storage = storage
        self._local = local
        self._timelines = {index.id: index for index in timelines}
        self._minted = dict.fromkeys(record.minted)
        self._is_changed = {index.id: index for index in base.timelines} != self._timelines
        self._base_paths = frozenset(all_paths(record.tenant, base.timelines).values())
        self._count_layers()

    @property
    def tenant(self) -> str:
        """The tenant's name."""
        return self._record.tenant

    @property
    def txn(self) -> int:
        """Its id."""
        return self._record.txn

    @property
    def record(self) -> LocalTenant:
        """Its record, as it is or will be in the local state."""
        return self._record

    @property
    def request(self) -> CommitRequest | None:
        """The request that waits for its answer; None: it is not frozen."""
        return self._record.request

    @property
    def timelines(self) -> Mapping[str, TimelineIndex]:
        """The timelines as they are now, by id. The mapping is replaced, never changed."""
        return self._timelines

    @property
    def is_changed(self) -> bool:
        """Whether there is something to commit."""
        return self._is_changed

    # ---- writing

    def mint(self, path: str) -> str:
        """Record a path, durably, before it is put. Raises `Unavailable` when the local state cannot be written."""
        self._check_open()
        self._store(replace(self._record, minted=(*self._minted, path)))
        self._minted[path] = None
        return path

    def publish(self, index: TimelineIndex) -> None:
        """Replace one timeline. Raises `Unavailable` when the local state cannot be written: nothing changed."""
        self.replace_timelines({**self._timelines, index.id: index})

    def replace_timelines(self, timelines: Mapping[str, TimelineIndex]) -> None:
        """Replace the set of timelines. Raises as `publish`."""
        self._check_open()
        self._store_state(timelines)
        self._timelines = dict(timelines)
        self._is_changed = {index.id: index for index in self.base.timelines} != self._timelines
        self._count_layers()

    def delete_unknown(self) -> int:
        """After a restart, delete every unknown object under the prefix. Return their number.

        Those that were minted go on the deadlist too, for their puts may land yet. Raises `Unavailable`.
        Cost: 1 LIST, and a delete when there are some.
        """
        known_paths = set(all_paths(self.tenant, self._timelines.values()).values())
        request = self._record.request
        if request is not None:
            known_paths |= {request.manifest.path, deadlist_of(request.manifest.path)}
        metas = self._storage.list(txn_folder(self.tenant, self.txn))
        unknown_paths = tuple(
            Deletable(meta.path, meta.size_bytes, f"not known in the open transaction {self.txn}")
            for meta in metas
            if meta.path not in known_paths
        )
        if unknown_paths:
            report = Sweeper(self._storage).sweep(CollectionPlan(store=self.tenant, hide=(), doomed=unknown_paths))
            if report.warnings:
                raise Unavailable(f"What {self.tenant} left unfinished cannot be deleted: {report.warnings[0]}")
        return len(unknown_paths)

    # ---- the commit

    def freeze(self, *, begin: bool = True) -> CommitRequest:
        """Make the request to commit what is there now; the same one until it is answered.

        Raises `Unavailable` when the local state cannot be written: nothing changed.
        """
        if self._record.request is not None:
            return self._record.request
        manifest = self._manifest(self._timelines)
        body = encode_manifest(manifest)
        named_paths = set(all_paths(self.tenant, manifest.timelines).values())
        dead = sorted((self._base_paths | self._minted.keys()) - named_paths)
        request = CommitRequest(
            tenant=self.tenant,
            txn=self.txn,
            node=self._node,
            generation=self._record.generation,
            manifest=refer(manifest_path(self.tenant, self.txn, _ATTEMPT), body),
            timelines={
                index.id: Progress(lsn=index.lsn, cutoff=index.cutoff, is_read_only=index.is_read_only)
                for index in manifest.timelines
            },
            names={index.name: index.id for index in manifest.timelines},
            has_deadlist=bool(dead),
            begin=begin,
        )
        self._local.store_state(self.tenant, body)
        self._store(replace(self._record, request=request, dead=tuple(dead)))
        return request

    def put_frozen(self) -> None:
        """Make the deadlist and the manifest of the request durable.

        Raises:
            AlreadyExists: kind ``transaction_used``: a transaction of this number was there before.
            Unavailable, OutcomeUnknown: of the store.

        Cost: 1 PUT, and 1 more when something died.
        """
        try:
            self._put_frozen()
        except AlreadyExists as error:
            raise AlreadyExists(
                f"Transaction {self.txn} of the tenant {self.tenant} cannot be committed: {error.message}, of an "
                "earlier transaction with this number. The ledger was restored to a time before it: restore ledger, "
                "log and storage to one moment.",
                kind="transaction_used",
                **error.facts,
            ) from error

    def _put_frozen(self) -> None:
        request = self._record.request
        assert request is not None
        if request.has_deadlist:
            deadlist = Deadlist(tenant=self.tenant, txn=self.txn, paths=self._record.dead)
            put_new(self._storage, deadlist_path(self.tenant, self.txn, _ATTEMPT), encode_deadlist(deadlist))
        body = self._local.state(self.tenant)
        if body is None or refer(request.manifest.path, body) != request.manifest:
            raise InternalError(f"the local state of {self.tenant} has lost the manifest that it asked with")
        put_new(self._storage, request.manifest.path, body)

    def successor(self, *, txn: int, generation: int) -> OpenTransaction:
        """Return the transaction that began with the commit of this one."""
        request = self._record.request
        assert request is not None
        record = LocalTenant(
            tenant=self.tenant,
            generation=generation,
            mode=self._record.mode,
            txn=txn,
            base=self.txn,
            manifest=request.manifest,
            policy=self._record.policy,
            created_ms=self._record.created_ms,
        )
        base = self._manifest(self._timelines)
        return OpenTransaction(
            record, base=base, timelines=base.timelines, node=self._node, storage=self._storage, local=self._local
        )

    @property
    def committed(self) -> ManifestRef | None:
        """The manifest of the base."""
        return self._record.manifest

    def store(self) -> None:
        """Store this transaction in the local state, instead of the one before it. Raises `Unavailable`."""
        self._store(self._record)

    def _store(self, record: LocalTenant) -> None:
        self._local.store(record)
        self._record = record

    def _store_state(self, timelines: Mapping[str, TimelineIndex]) -> None:
        self._local.store_state(self.tenant, encode_manifest(self._manifest(timelines)))

    def _manifest(self, timelines: Mapping[str, TimelineIndex]) -> Manifest:
        removed_ids = [index.id for index in self.base.timelines if index.id not in timelines]
        return Manifest(
            tenant=self.tenant,
            txn=self.txn,
            base=self._record.base,
            timelines=tuple(timelines.values()),
            gone=(*self.base.gone, *removed_ids)[-GONE_MAX:],
        )

    def _count_layers(self) -> None:
        folder = txn_folder(self.tenant, self.txn) + "/"
        sizes: dict[str, int] = {}
        for index in self._timelines.values():
            paths = paths_of(self.tenant, index)
            sizes |= {paths[file.id]: file.size_bytes for file in index.files.files()}
        self.layer_bytes = sum(size for path, size in sizes.items() if path.startswith(folder))

    def _check_open(self) -> None:
        if self._record.request is not None:
            raise InternalError(f"transaction {self.txn} of {self.tenant} is frozen, and was to be changed")


def lacks_layers(record: LocalTenant, *, storage: ObjectStore, local: LocalState) -> bool:
    """Whether the storage lacks a layer that was written in a transaction of the local state, which can be resumed.

    A crash loses none. A storage that was put back from an older copy may have the same transaction open without them:
    its rows are in the log, and a commit that names what is missing would lose them. While the storage does not answer,
    none is lacking.

    Cost: 1 LIST, if layers were written.
    """
    body = local.state(record.tenant)
    if body is None:
        return False
    state = decode_manifest(body, path="the local state")
    folder = txn_folder(record.tenant, record.txn)
    written_paths = {
        path for path in all_paths(record.tenant, state.timelines).values() if path.startswith(f"{folder}/")
    }
    try:
        return bool(written_paths) and not written_paths.issubset(meta.path for meta in storage.list(folder))
    except Unavailable:
        return False
