"""The bytes of a tenant's manifests and deadlists. Each is a JSON document that any tool can read. Pure.

Owns: the envelope around them (`lakebed.objects.document`), in this order (DO NOT CHANGE)::

    {"checksum":"<16 hex digits>","format":1,"min_reader":1,"features":[],"manifest":{...}}
    {"checksum":"<16 hex digits>","format":1,"min_reader":1,"features":[],"deadlist":{...}}

Invariant: a commit pins a manifest by `ManifestRef.checksum`, the xxh3-128 of the whole object. So bytes that another
writer put under the same name are `Corruption`.

Format: docs/format/manifest-fleet.md.
"""

from __future__ import annotations

from typing import Final

import xxhash
from typing_extensions import Buffer

from lakebed.errors import Corruption
from lakebed.fleet.model import Manifest, ManifestRef, Stored
from lakebed.objects.document import Document, Envelope

FORMAT: Final = 1

_HEADER: Final = b'","format":%d,"min_reader":%d,"features":[],' % (FORMAT, FORMAT)


class Deadlist(Stored, frozen=True):
    """Objects of older transactions that the state of `txn` does not reference any longer."""

    tenant: str
    txn: int
    """The transaction that made them unneeded. After its commit they may be deleted."""
    paths: tuple[str, ...]
    """Paths relative to the root of the fleet's storage, ascending."""


class _ManifestEnvelope(Envelope):
    manifest: Manifest


class _DeadlistEnvelope(Envelope):
    deadlist: Deadlist


_MANIFEST: Final = Document(_ManifestEnvelope, what="manifest", header=_HEADER + b'"manifest":', format=FORMAT)
_DEADLIST: Final = Document(_DeadlistEnvelope, what="deadlist", header=_HEADER + b'"deadlist":', format=FORMAT)


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest. Equal manifests have equal bytes."""
    return _MANIFEST.encode(manifest)


def decode_manifest(body: Buffer, *, path: str) -> Manifest:
    """Decode a manifest.

    Args:
        body: the whole object.
        path: the object's path, for errors.

    Raises:
        Corruption: the bytes were changed.
        UnsupportedFormat: a newer lakebed wrote them.
    """
    return _MANIFEST.decode(body, path=path).manifest


def encode_deadlist(deadlist: Deadlist) -> bytes:
    """Encode a deadlist. Equal deadlists have equal bytes."""
    return _DEADLIST.encode(deadlist)


def decode_deadlist(body: Buffer, *, path: str) -> Deadlist:
    """Decode a deadlist. Arguments and errors as `decode_manifest`."""
    return _DEADLIST.decode(body, path=path).deadlist


def refer(path: str, body: Buffer) -> ManifestRef:
    """Return the reference that pins a manifest's object."""
    view = memoryview(body).cast("B")
    return ManifestRef(path=path, checksum=xxhash.xxh3_128_hexdigest(view), size_bytes=view.nbytes)


def decode_referenced(body: Buffer, reference: ManifestRef) -> Manifest:
    """Decode the manifest that a commit pinned. Raises `Corruption` for another object; as `decode_manifest`."""
    actual = refer(reference.path, body)
    if actual != reference:
        raise Corruption(
            f"{reference.path} is not the manifest that was committed: its checksum is {actual.checksum}, and the "
            f"commit says {reference.checksum}.",
            path=reference.path,
            offset=0,
            expected=reference.checksum,
            actual=actual.checksum,
        )
    return decode_manifest(body, path=reference.path)
