"""The address of a storage's fleet: the object ``_fleet/control.json``, which a running control plane writes.

Format (version 1, JSON, DO NOT CHANGE)::

    {"format": 1, "url": "http://127.0.0.1:8200", "log": "http://127.0.0.1:8300", "ledger": "kv", "written_ms": ...}

Invariants: the object contains no secret. It is a hint. The control plane that started last wrote it. That process may
have ended, or may serve the storage from which this one was copied. A client that gets no answer, or finds that
another storage is served, reports how to start a control plane.
"""

from __future__ import annotations

import os
from typing import Final, TypeVar

import msgspec

from lakebed.decoding import decode_json
from lakebed.errors import Corruption, InvalidRequest, NotFound, UnsupportedFormat
from lakebed.fleet.layout import FLEET_FOLDER
from lakebed.objects.path import parse_url
from lakebed.objects.port import ObjectStore

ADDRESS_PATH: Final = f"{FLEET_FOLDER}/control.json"
CONTROL_VARIABLE: Final = "LAKEBED_FLEET_CONTROL"
"""The environment variable with the URL of a control plane; it wins over the object."""
LOG_VARIABLE: Final = "LAKEBED_FLEET_LOG"
"""The environment variable with the log's URL and credentials, which the control plane does not disclose."""
LEDGER_VARIABLE: Final = "LAKEBED_FLEET_LEDGER"
"""The environment variable with the ledger's URL. The URL may have a password, and every user can see commands."""

_LEDGERS: Final = ("postgresql://", "postgres://")
FORMAT: Final = 1
"""Format version of the objects in the fleet's folder."""


class Document(msgspec.Struct, frozen=True):
    """The content of an object in the fleet's folder. Unknown fields are ignored."""

    format: int


D = TypeVar("D", bound=Document)


class StoredAddress(Document, frozen=True):
    """The content of ``_fleet/control.json``."""

    url: str
    log: str
    ledger: str
    written_ms: int = 0


def write_address(store: ObjectStore, *, url: str, log: str, ledger: str, now_ms: int) -> None:
    """Write the address of a control plane. Cost: 1 PUT."""
    store.put(ADDRESS_PATH, msgspec.json.encode(StoredAddress(FORMAT, url, log, ledger, now_ms)))


def read_address(store: ObjectStore) -> StoredAddress | None:
    """Return the address of the last control plane; None: the storage never had one.

    Raises:
        Corruption: the object is not an address.
        UnsupportedFormat: a newer lakebed wrote it.

    Cost: 1 GET.
    """
    fault, advice = "is not the address of a control plane", "delete it, and start the fleet again."
    return read_document(store, ADDRESS_PATH, StoredAddress, fault=fault, advice=advice)


def read_document(store: ObjectStore, path: str, kind: type[D], *, fault: str, advice: str) -> D | None:
    """Read a JSON object of the fleet's folder; None: it does not exist.

    `fault` and `advice` are the message for an object that does not decode.

    Raises `Corruption`, and `UnsupportedFormat`: a newer lakebed wrote it. Cost: 1 GET.
    """
    try:
        document = decode_json(bytes(store.get(path)), kind)
    except NotFound:
        return None
    except msgspec.DecodeError as error:
        raise Corruption(f"{store.root_url}/{path} {fault} ({error}): {advice}", path=path) from error
    if document.format != FORMAT:
        raise UnsupportedFormat(
            f"{store.root_url}/{path} has format {document.format}, which this lakebed does not know: upgrade lakebed.",
            path=path,
            format=document.format,
        )
    return document


def control_url(store: ObjectStore, url: str | None = None) -> str:
    """Return the URL of the storage's control plane: `url`, the environment's, or that in ``_fleet/control.json``.

    Raises:
        NotFound: ``fleet_not_found``: the storage never had a fleet.
    """
    setting = url or os.environ.get(CONTROL_VARIABLE, "").strip()
    if setting:
        return setting.rstrip("/")
    address = read_address(store)
    if address is None:
        raise NotFound(
            f"No fleet has served {store.root_url} yet: start one with lakebed fleet up {display_url(store)}, or "
            f"name its control plane in {CONTROL_VARIABLE}.",
            kind="fleet_not_found",
            url=store.root_url,
        )
    return address.url


def folder_number(url: str) -> int:
    """Return the file system's number of a storage's folder; 0: no folder. A copy of the folder has another number."""
    location = parse_url(url)
    if location.scheme != "file":
        return 0
    try:
        return os.stat(location.prefix).st_ino
    except OSError:
        return 0


def is_served(store: ObjectStore, *, url: str, folder: int) -> bool:
    """Whether a control plane serves this storage, given the URL and `folder_number` of the storage that it serves.

    A folder may have another path elsewhere, such as in a container, but keeps its number. The top folders of two disks
    may have the same number: then a copy from one disk to the other is mistaken for the original.
    """
    if parse_url(url) == parse_url(store.root_url):
        return True
    number = folder_number(store.root_url)
    return bool(number) and (number == folder or (not folder and parse_url(url).scheme == "file"))


def check_ledger_url(url: str | None) -> str | None:
    """Return the URL of a ledger; None for a database in the storage. Raises `InvalidRequest` (``unknown_ledger``)."""
    if url is not None and not url.startswith(_LEDGERS):
        raise InvalidRequest(
            f"No ledger has the URL {url.partition('://')[0]}...: use postgresql://..., or leave --ledger out for a "
            "database in the storage.",
            kind="unknown_ledger",
        )
    return url


def display_url(store: ObjectStore) -> str:
    """Return a store's URL for messages: a folder as its path."""
    return store.root_url.removeprefix("file://")
