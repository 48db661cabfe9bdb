"""The local state of a node: what it needs to continue its open transactions after a restart.

Owns: the folder. It is a cache except for three things: the exclusive lock, the open transactions with the paths that
were minted in them, and the marks of broken attachments.

Invariants:
- A process reads and changes the state only while it holds the lock, which the system releases when the process ends:
  so the holder knows that no older process of this state writes any more.
- A change is durable when its call returns; a crash leaves the old record or the new one.
- A path is recorded before anything is put there (`LocalTenant.minted`).
- A record that cannot be read, or whose timelines cannot be read, counts as missing. Then the node does not continue
  the transaction, and waits for an attach.
- The state of one fleet is not used in another fleet, which has transactions with the same numbers.

Layout of the folder::

    lock                     locked by the running process
    id                       a random name of this state: another one after it was lost
    fleet                    URL of the fleet's storage
    address                  where storage and log are, as the control plane said last
    tenants/<tenant>.json    LocalTenant
    tenants/<tenant>.state   the timelines of the open transaction, as a manifest
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from lakebed.decoding import decode_json
from lakebed.errors import Conflict, LakebedError, NotFound, Unavailable
from lakebed.fleet.manifest import decode_manifest, refer
from lakebed.fleet.model import MAIN, AttachmentMode, ManifestRef, Policy, Stored
from lakebed.fleet.ports import CommitRequest, FleetAddress, Location
from lakebed.ids import new_uuid
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

_TENANTS: Final = "tenants"
_RECORD: Final = ".json"
_STATE: Final = ".state"
_ID: Final = "id"
_FLEET: Final = "fleet"
_ADDRESS: Final = "address"
_LOCK: Final = "lock"


class LocalTenant(Stored, frozen=True):
    """What is remembered of one tenant: the transaction in which files were written, or why it is broken."""

    tenant: str
    generation: int
    mode: AttachmentMode
    txn: int
    base: int
    manifest: ManifestRef | None = None
    """Reference to the manifest of `base`."""
    policy: Policy = Policy()
    created_ms: int = 0
    main: str = MAIN
    """As `Location.main`."""
    minted: tuple[str, ...] = ()
    """Paths at which something was, or may have been, put in the transaction; those of a pending request are in it."""
    request: CommitRequest | None = None
    """A request to commit that was, or may have been, sent: it is repeated until it is answered."""
    dead: tuple[str, ...] = ()
    """The deadlist of `request`."""
    is_broken: bool = False
    """The transaction was rejected, or given up: nothing is written for this attachment any more."""
    is_acknowledged: bool = False
    """Broken, and the control plane knows that nothing is written any more."""

    @classmethod
    def of(cls, location: Location) -> LocalTenant:
        """Return the record of a new attachment."""
        assert location.txn is not None
        assert location.mode is not None
        return cls(**_fields_of_location(location))

    @property
    def location(self) -> Location:
        """The location that the transaction had."""
        return Location(**_fields_of_location(self))


def _fields_of_location(of: Location | LocalTenant) -> dict[str, Any]:
    return {name: getattr(of, name) for name in Location.__struct_fields__}


class _Folder:
    """Small files in a folder, each replaced as a whole and durably."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store: ObjectStore = open_store(folder)
        self._descriptor: int | None = None

    def read(self, name: str) -> bytes | None:
        try:
            return bytes(self._store.get(name))
        except NotFound:
            return None

    def write(self, name: str, body: bytes) -> None:
        self._store.put(name, body, durable=True)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def names(self) -> Iterator[str]:
        return (meta.path for meta in self._store.list(_TENANTS))

    def lock(self) -> bool:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unavailable(
                f"The lock of the local state {self._folder} cannot be opened: {error}.", kind="local_state"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class LocalState:
    """The local state of one node.

    Args:
        folder: made if it is not there. One process uses it at a time.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._files = _Folder(Path(folder))
        self._is_held = False
        self._id = ""

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._is_held

    @property
    def id(self) -> str:
        """The name of this state; empty before it was acquired."""
        return self._id

    def acquire(self, environment: Environment, *, fleet: str) -> None:
        """Take the exclusive lock, and mint `id` if the state is new, or another fleet's: that is forgotten.

        Args:
            fleet: URL of its storage. When it becomes another one, the node only loses what it could resume.

        Raises:
            Conflict: kind ``local_state_locked``: another process uses the state.
            Unavailable: the folder cannot be used.
        """
        if self._is_held or not self._files.lock():
            raise Conflict(
                "The node's local state is in use by another process: stop that process, or give this node a folder of "
                "its own.",
                kind="local_state_locked",
            )
        self._is_held = True
        try:
            raw, fleet_id = self._files.read(_ID), self._files.read(_FLEET)
            if fleet_id not in (None, fleet.encode()):
                raw = None
                for name in list(self._files.names()):
                    self._files.remove(name)
            if not raw:
                raw = new_uuid(environment.rng).encode()
                self._files.write(_ID, raw)
            if fleet_id != fleet.encode():
                self._files.write(_FLEET, fleet.encode())
        except BaseException:
            self.release()
            raise
        self._id = raw.decode("utf-8", "replace")

    def release(self) -> None:
        """Give the lock back, as the system does when the process ends. Again is a no-op."""
        self._is_held = False
        self._files.unlock()

    def address(self) -> FleetAddress | None:
        """Return the address that `store_address` stored last; None: there is none that can be read. Needs no lock."""
        body = self._files.read(_ADDRESS)
        try:
            return None if body is None else decode_json(body, FleetAddress)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def store_address(self, address: FleetAddress) -> None:
        """Remember where storage and log are, for a start without the control plane. Raises as `store`."""
        self._check_held()
        if address != self.address():
            self._files.write(_ADDRESS, msgspec.json.encode(address))

    def tenants(self) -> list[LocalTenant]:
        """Return all readable records, by tenant."""
        names = [
            name.removeprefix(f"{_TENANTS}/").removesuffix(_RECORD)
            for name in self._files.names()
            if name.endswith(_RECORD)
        ]
        return [record for name in names if (record := self.tenant(name)) is not None]

    def tenant(self, tenant: str) -> LocalTenant | None:
        """Return a tenant's record; None if there is none that can be read."""
        body = self._files.read(f"{_TENANTS}/{tenant}{_RECORD}")
        try:
            return None if body is None else decode_json(body, LocalTenant)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            return None

    def can_resume(self, record: LocalTenant) -> bool:
        """Whether the timelines of a record's transaction are there; of a request, exactly those that it asked with."""
        body = self.state(record.tenant)
        if record.request is not None:
            return body is not None and refer(record.request.manifest.path, body) == record.request.manifest
        try:
            return body is None or decode_manifest(body, path="the local state").tenant == record.tenant
        except LakebedError:
            return False

    def store(self, record: LocalTenant) -> None:
        """Replace a tenant's record. Raises `Unavailable`, also when the disk is full: nothing changed."""
        self._check_held()
        self._files.write(f"{_TENANTS}/{record.tenant}{_RECORD}", msgspec.json.encode(record))

    def state(self, tenant: str) -> bytes | None:
        """Return the timelines that `store_state` stored last."""
        return self._files.read(f"{_TENANTS}/{tenant}{_STATE}")

    def store_state(self, tenant: str, body: bytes) -> None:
        """Replace a tenant's timelines. Raises as `store`."""
        self._check_held()
        self._files.write(f"{_TENANTS}/{tenant}{_STATE}", body)

    def forget(self, tenant: str) -> None:
        """Remove all of a tenant."""
        self._check_held()
        self._files.remove(f"{_TENANTS}/{tenant}{_RECORD}")
        self._files.remove(f"{_TENANTS}/{tenant}{_STATE}")

    def _check_held(self) -> None:
        assert self._is_held, "the local state is changed without its lock"
