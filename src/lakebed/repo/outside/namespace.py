"""Storage namespaces: the folder of the storage with a repository's objects, and how a repository claims it.

Owns: the marker `MARKER_PATH` and `claim_namespace`. Invariants: a namespace is a folder inside the storage, neither
its root nor inside the folder of records. The marker is put create-only before the repository is recorded, so no two
catalogs over one storage take the same folder. An interrupted creation leaves at most the marker. The next creation of
the same catalog takes over the marker with its uid, so only one of several creations can be recorded.
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
"""Ending of a repository's default namespace: ``<name>.repo``."""

METADATA_FOLDER: Final = "_repositories"
"""Folder of the database of records, in the storage."""

STORE_SUFFIXES: Final = (".db", ".kv", REPOSITORY_SUFFIX)
"""Endings of names at the top of a lake: namespaces of tables, databases, repositories (`lakebed.lake`)."""

_TIME_CHARACTERS: Final = 10
"""Characters of a ULID that are its time, before the random ones."""

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError)

_LOCAL: Final = "local://"
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.ASCII | re.IGNORECASE)


class _Marker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of `MARKER_PATH`. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    format: int
    home: str
    uid: str
    name: str
    created_at_ms: int
    is_shared: bool = False
    """As `RepositoryRecord.is_shared`, which an older version drops when it changes the record."""


def namespace_folder(namespace: str, *, root_url: str) -> str:
    """The folder of a namespace, relative to the storage.

    Args:
        namespace: a folder relative to the storage, ``local://folder`` for the same, or a URL inside the storage.

    Raises:
        InvalidRequest: kind ``outside_storage``; ``invalid_namespace``: it is the storage itself, the folder of
            records or inside that, or not a path.
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
    """Refuse a malformed URL, such as ``local:/folder``.

    Only for new repositories: a namespace that was accepted once stays valid, because it is stored.

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
        InvalidRequest: kind ``invalid_namespace``: it is inside another store, or is the folder of records in another
            case, which some disks treat as the same folder.
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
    """Whether a folder has ranges of lakeFS: it is, or was, the storage namespace of a lakeFS repository.

    Cost: 1 LIST.
    """
    return any(True for _ in storage.sub(folder).list(LAKEFS_FOLDER))


def is_of_lakefs(path: str, *, uid: str = "") -> bool:
    """Whether a path in a shared namespace is not lakebed's, but one of lakeFS's files or an object that lakeFS names.

    Args:
        uid: the repository's uid: an object whose name is older than it existed before the repository. Empty: only the
            form of the name counts.
    """
    if path in (MARKER_PATH, CLOCK_PATH) or is_probe(path):
        return False
    ulid = made_ulid(path)
    return ulid is None or ulid < start_ulid(uid)


def is_shared_namespace(store: ObjectStore, record: RepositoryRecord, *, checked_as: str | None = None) -> bool:
    """Whether a namespace is shared with lakeFS, so that files of others must stay: the record or the marker says so.

    If the marker is unreadable, the answer is yes, to protect the files.

    Args:
        checked_as: the name of the repository, to also check the namespace (`check_namespace`) with the same request.

    Raises:
        Conflict: as `check_namespace`.
    Cost: 1 GET; none if the record says so and there is nothing to check.
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
    """Check that a namespace belongs to a repository of the opened records: its marker must name the same uid.

    Records of another lake, or of another day, may have a repository of the same name. To them, the objects here would
    be garbage. A missing or damaged marker is accepted, because it shows no mismatch.

    Raises:
        Conflict: kind ``namespace_of_other_records``.
    Cost: 1 GET.
    """
    is_shared_namespace(store, record, checked_as=name)


def start_ulid(uid: str) -> str:
    """The least ULID of a repository's objects. Pure.

    It is the uid without its random part, because ULIDs of the same millisecond are not in order.
    """
    return uid[:_TIME_CHARACTERS]


def claim_namespace(
    storage: ObjectStore, folder: str, *, name: str, home_id: str, environment: Environment, is_shared: bool = False
) -> str:
    """Make an empty folder the namespace of a repository that is about to be recorded.

    Args:
        storage: the folder of all namespaces. Create-only puts are probed here, not in `folder`, which must hold only
            the marker.
        folder: the namespace, relative to the storage.
        home_id: the id of the catalog that records it.
        is_shared: the folder may have files of lakeFS, which stay.

    Returns:
        The repository's uid: a new one, or that of an interrupted creation by the same catalog. The caller must record
        it on the condition that this uid is neither recorded nor deleted.

    Raises:
        AlreadyExists: kind ``namespace_in_use``: the folder has another catalog's marker, or any other object.
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
            path = MARKER_PATH  # another process created it first
        else:
            return uid
    if path != MARKER_PATH:
        raise _in_use(store, f"it holds {path}")
    record = _read_marker(store)
    if record.home != home_id:
        raise _in_use(store, f"repository {record.name} of another catalog has it")
    return record.uid


def _marker_path(store: ObjectStore) -> str | None:
    """The path of the marker, if it exists."""
    return MARKER_PATH if has_object(store, MARKER_PATH) else None


def _first_object(store: ObjectStore) -> str | None:
    """An object of the folder; the marker only if there is no other. Probes are ignored."""
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
