"""Storage namespaces: which folder of the storage a repository's objects are in, and how it becomes its own.

Owns: the marker `MARKER_PATH` and `claim_namespace`. Invariants: a namespace is a folder inside the storage, neither
its root nor inside the folder of records; the marker is put create-only before the repository is recorded, so no two
catalogs over one storage take the same folder. An interrupted creation leaves at most the marker: the next one of
the same catalog takes that over, with the same uid, so that of several only one can be recorded.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from lakebed.decoding import decode_json
from lakebed.errors import AlreadyExists, Conflict, Corruption, InvalidRequest, NotFound
from lakebed.lsm.file_id import mint_file_id
from lakebed.objects.create_once import create_once
from lakebed.objects.path import check_path, parse_url
from lakebed.objects.port import ObjectStore, has_object
from lakebed.objects.probe import is_probe, probe_create_only
from lakebed.repo.model.layout import CLOCK_PATH, LAKEFS_FOLDER, MARKER_PATH, made_ulid
from lakebed.runtime import Environment

if TYPE_CHECKING:
    from lakebed.repo.model.model import RepositoryRecord

REPOSITORY_SUFFIX: Final = ".repo"
"""Ends the default namespace of a repository: ``<name>.repo``."""

METADATA_FOLDER: Final = "_repositories"
"""Where the database of records is, in the storage."""

STORE_SUFFIXES: Final = (".db", ".kv", REPOSITORY_SUFFIX)
"""Ends of the names of stores at the top of a lake: databases of tables, databases, repositories (`lakebed.lake`)."""

_TIME_CHARACTERS: Final = 10
"""Of a ULID, before what is random."""

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError)

_LOCAL: Final = "local://"
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.ASCII | re.IGNORECASE)


class _Marker(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    format: int
    home: str
    uid: str
    name: str
    created_at_ms: int
    is_shared: bool = False
    """As `RepositoryRecord.is_shared`, which a version that does not know it drops when it changes the record."""


def namespace_folder(namespace: str, *, root_url: str) -> str:
    """The folder of a namespace, relative to the storage.

    Args:
        namespace: a folder relative to the storage, ``local://folder`` for the same, or a URL inside the storage.

    Raises:
        InvalidRequest: kind ``outside_storage``; ``invalid_namespace``: it is the storage itself, the folder of
            records or inside it, or no path.
    """
    if namespace.startswith(_LOCAL):
        folder = namespace.removeprefix(_LOCAL).strip("/")
    elif "://" in namespace or namespace.startswith("/"):
        url = str(parse_url(namespace))
        folder = url.removeprefix(root_url + "/")
        if folder == url and url != root_url:
            raise InvalidRequest(
                f"The namespace {namespace} is outside of the storage {root_url}: name a folder inside it, or leave "
                "the namespace out.",
                kind="outside_storage",
                namespace=namespace,
            )
        folder = "" if url == root_url else folder
    else:
        folder = namespace.strip("/")
    if not folder or overlaps(folder, METADATA_FOLDER):
        raise InvalidRequest(
            f"{namespace!r} cannot be a namespace: name a folder inside {root_url}, and not {METADATA_FOLDER}.",
            kind="invalid_namespace",
            namespace=namespace,
        )
    try:
        return check_path(folder)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{namespace!r} cannot be a namespace: {error}.", kind="invalid_namespace", namespace=namespace
        ) from error


def check_new_namespace(namespace: str) -> None:
    """Refuse what looks like a URL and is not one, such as ``local:/folder``.

    Only of new repositories: a namespace that was accepted once stays acceptable, for it is stored.

    Raises:
        InvalidRequest: kind ``invalid_namespace``.
    """
    if _SCHEME.match(namespace) is not None and "://" not in namespace:
        raise InvalidRequest(
            f"{namespace!r} cannot be a namespace: a URL has :// behind its scheme, as in local://folder.",
            kind="invalid_namespace",
            namespace=namespace,
        )


def check_new_folder(folder: str) -> None:
    """Refuse a folder, relative to the storage, that no new repository may have.

    Raises:
        InvalidRequest: kind ``invalid_namespace``: it is the folder of records in other letters, which some disks take
            for the same, or inside another store.
    """
    first, slash, _ = folder.casefold().partition("/")
    if first != METADATA_FOLDER and not (slash and first.endswith(STORE_SUFFIXES)):
        return
    raise InvalidRequest(
        f"{folder!r} cannot be a namespace: it is inside {first}, which is another store of the lake or its records. "
        "Name another folder.",
        kind="invalid_namespace",
        namespace=folder,
    )


def overlaps(folder: str, other: str) -> bool:
    """Whether two folders are the same, or one is inside the other."""
    return folder == other or folder.startswith(other + "/") or other.startswith(folder + "/")


def holds_lakefs(storage: ObjectStore, folder: str) -> bool:
    """Whether a folder has ranges of lakeFS: it is, or was, the storage namespace of a repository there.

    Cost: 1 LIST.
    """
    return any(True for _ in storage.sub(folder).list(LAKEFS_FOLDER))


def is_of_lakefs(path: str, *, uid: str = "") -> bool:
    """Whether a path in a shared namespace is not of lakebed: lakeFS's own files of a repository, or what it names.

    Args:
        uid: of the repository: what has the name of an older object was there before it. Empty: only names count.
    """
    if path in (MARKER_PATH, CLOCK_PATH) or is_probe(path):
        return False
    ulid = made_ulid(path)
    return ulid is None or ulid < start_ulid(uid)


def is_shared_namespace(store: ObjectStore, record: RepositoryRecord, *, checked_as: str | None = None) -> bool:
    """Whether what is not of a repository stays in its namespace: its record says so, or its marker.

    A marker that cannot be read protects what is there.

    Args:
        checked_as: the name of the repository, to check the namespace too, with the same request.

    Raises:
        Conflict: as `check_namespace`.
    Cost: 1 GET, unless the record says so and nothing is checked.
    """
    if record.is_shared and checked_as is None:
        return True
    try:
        marker = decode_json(bytes(store.get(MARKER_PATH)), _Marker)
    except NotFound:
        return record.is_shared
    except _UNREADABLE:
        return True
    if checked_as is not None and marker.uid != record.uid:
        raise Conflict(
            f"The records that were opened are not those of {store.root_url}: its {MARKER_PATH} names the repository "
            f"{marker.name} with the id {marker.uid}, and they have {checked_as} with the id {record.uid}. Open the "
            "storage with the records that belong to it (--metadata), or restore both to the same moment.",
            kind="namespace_of_other_records",
            namespace=store.root_url,
            repository=checked_as,
            expected=marker.uid,
            found=record.uid,
        )
    return record.is_shared or marker.is_shared


def check_namespace(store: ObjectStore, record: RepositoryRecord, *, name: str) -> None:
    """Check that a namespace is that of a repository whose records were opened: its marker names the same uid.

    Records of another lake, or of another day, have a repository of this name too, and take what is here for garbage.
    A marker that is missing or damaged is accepted: then nothing shows it.

    Raises:
        Conflict: kind ``namespace_of_other_records``.
    Cost: 1 GET.
    """
    is_shared_namespace(store, record, checked_as=name)


def start_ulid(uid: str) -> str:
    """The least ULID of what a repository makes: those of its first millisecond are not in order. Pure."""
    return uid[:_TIME_CHARACTERS]


def claim_namespace(
    storage: ObjectStore, folder: str, *, name: str, home_id: str, environment: Environment, is_shared: bool = False
) -> str:
    """Make an empty folder the namespace of a repository that is about to be recorded.

    Args:
        storage: the folder of all namespaces. It is probed, not the folder, which must hold only the marker.
        folder: the namespace, relative to the storage.
        home_id: of the catalog that records it.
        is_shared: the files of lakeFS may be there, and stay.

    Returns:
        The repository's uid: a new one, or that of a creation by the same catalog that was interrupted before anything
        was put here. Its recorder expects that this uid is neither recorded nor deleted.

    Raises:
        AlreadyExists: kind ``namespace_in_use``: another catalog's marker, or any other object, is there.
        InvalidRequest: kind ``create_only_ignored``: the store would let two repositories take one folder.
        Corruption: the marker is damaged.
        OutcomeUnknown: the store gave no clear answer; try again.
    Cost: 1 LIST + 3 PUT + 1 DELETE.
    """
    uid = mint_file_id(environment=environment)
    store = storage.sub(folder)
    path = _marker_path(store) if is_shared else _first_object(store)
    if path is None:
        probe_create_only(storage, environment=environment)
        marker = _Marker(1, home_id, uid, name, environment.clock.now_ms(), is_shared)
        try:
            create_once(store, MARKER_PATH, msgspec.json.encode(marker), environment=environment)
        except AlreadyExists:
            path = MARKER_PATH  # another process was faster
        else:
            return uid
    if path != MARKER_PATH:
        raise _in_use(store, f"it holds {path}")
    record = _read_marker(store)
    if record.home != home_id:
        raise _in_use(store, f"repository {record.name} of another catalog has it")
    return record.uid


def _marker_path(store: ObjectStore) -> str | None:
    """The marker, if it is there."""
    return MARKER_PATH if has_object(store, MARKER_PATH) else None


def _first_object(store: ObjectStore) -> str | None:
    """An object of the folder, the marker only when there is no other; probes do not count."""
    paths = islice((meta.path for meta in store.list() if not is_probe(meta.path)), 2)
    return min(paths, key=MARKER_PATH.__eq__, default=None)


def _read_marker(store: ObjectStore) -> _Marker:
    try:
        return decode_json(bytes(store.get(MARKER_PATH)), _Marker)
    except NotFound as error:
        raise _in_use(store, "its marker was taken away at this moment") from error
    except _UNREADABLE as error:
        raise Corruption(
            f"{store.url(MARKER_PATH)} is not a valid marker of a repository ({error}): restore it, or choose another "
            "folder.",
            path=MARKER_PATH,
        ) from error


def _in_use(store: ObjectStore, because: str) -> AlreadyExists:
    return AlreadyExists(
        f"The namespace {store.root_url} is in use: {because}. Choose another folder.",
        kind="namespace_in_use",
        namespace=store.root_url,
    )
