"""The bytes of a tenant's manifests and deadlists: one JSON document each, that any tool reads. Pure.

Owns: the envelope, on one line, in this order (DO NOT CHANGE)::

    {"checksum":"<16 hex digits>","format":1,"min_reader":1,"features":[],"manifest":{...}}
    {"checksum":"<16 hex digits>","format":1,"min_reader":1,"features":[],"deadlist":{...}}

Invariants:
- The checksum is xxh3-64 of every byte behind its closing quotation mark; the bytes up to there are compared, so each
  byte is covered. It has the same place in every format to come, and is checked first.
- `min_reader` above ours, a feature or a field that is not known here: `UnsupportedFormat`. Nothing unknown is dropped.
- A commit pins a manifest by `ManifestRef.checksum`, the xxh3-128 of the whole object: the bytes of another writer
  under the same name are `Corruption`.

Format: docs/format/manifest-fleet.md.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec
import xxhash
from typing_extensions import Buffer

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.fleet.model import Manifest, ManifestRef, Stored

FORMAT: Final = 1

_FEATURES: Final[frozenset[str]] = frozenset()
_BEFORE: Final = b'{"checksum":"'
_CHECKSUM_END: Final = len(_BEFORE) + 16
_HEADER: Final = b'","format":%d,"min_reader":%d,"features":[],' % (FORMAT, FORMAT)
_UNKNOWN_FIELD: Final = re.compile(r"contains unknown field `([^`]*)`")


class Deadlist(Stored, frozen=True):
    """Objects of older transactions that the state of `txn` does not reference any more."""

    tenant: str
    txn: int
    """The transaction in which they died: with its commit they may be deleted."""
    paths: tuple[str, ...]
    """Relative to the root of the fleet's storage, ascending."""


class _Header(msgspec.Struct):
    format: int
    min_reader: int
    features: list[str]


class _ManifestEnvelope(msgspec.Struct, forbid_unknown_fields=True):
    checksum: str
    format: int
    min_reader: int
    features: list[str]
    manifest: Manifest


class _DeadlistEnvelope(msgspec.Struct, forbid_unknown_fields=True):
    checksum: str
    format: int
    min_reader: int
    features: list[str]
    deadlist: Deadlist


_encoder: Final = msgspec.json.Encoder()
_headers: Final = msgspec.json.Decoder(_Header)
_manifests: Final = msgspec.json.Decoder(_ManifestEnvelope)
_deadlists: Final = msgspec.json.Decoder(_DeadlistEnvelope)

E = TypeVar("E", _ManifestEnvelope, _DeadlistEnvelope)


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest's document. Equal manifests have equal bytes."""
    return _encoded(b'"manifest":', manifest)


def decode_manifest(body: Buffer, *, path: str) -> Manifest:
    """The manifest in a document.

    Args:
        body: the whole object.
        path: the object's, for the errors.

    Raises:
        Corruption: these are not the bytes that were written.
        UnsupportedFormat: written by a newer lakebed.
    """
    return _decoded(_manifests, body, path=path, what="manifest").manifest


def encode_deadlist(deadlist: Deadlist) -> bytes:
    """The deadlist's document. Equal deadlists have equal bytes."""
    return _encoded(b'"deadlist":', deadlist)


def decode_deadlist(body: Buffer, *, path: str) -> Deadlist:
    """The deadlist in a document. Arguments and errors as `decode_manifest`."""
    return _decoded(_deadlists, body, path=path, what="deadlist").deadlist


def refer(path: str, body: Buffer) -> ManifestRef:
    """The reference that pins a manifest's object."""
    view = memoryview(body).cast("B")
    return ManifestRef(path=path, checksum=xxhash.xxh3_128_hexdigest(view), size_bytes=view.nbytes)


def decode_referenced(body: Buffer, reference: ManifestRef) -> Manifest:
    """The manifest that a commit pinned. Raises `Corruption` when the object is another one; as `decode_manifest`."""
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


def _encoded(name: bytes, content: Stored) -> bytes:
    body = bytearray(_BEFORE + b"0" * 16 + _HEADER + name)
    _encoder.encode_into(content, body, -1)
    body += b"}\n"
    body[len(_BEFORE) : _CHECKSUM_END] = _checksum(memoryview(body)[_CHECKSUM_END + 1 :])
    return bytes(body)


def _decoded(decoder: msgspec.json.Decoder[E], body: Buffer, *, path: str, what: str) -> E:
    view = memoryview(body).cast("B")
    start, stated = bytes(view[: len(_BEFORE)]), bytes(view[len(_BEFORE) : _CHECKSUM_END])
    if start != _BEFORE or bytes(view[_CHECKSUM_END : _CHECKSUM_END + 1]) != b'"':
        raise Corruption(f"{path} is not a {what}: it does not begin with its checksum", path=path, offset=0)
    actual = _checksum(view[_CHECKSUM_END + 1 :])
    if stated != actual:
        raise Corruption(
            f"{path} is damaged: its checksum is {actual.decode()}, and it says {stated.decode('latin-1')!r}",
            path=path,
            offset=len(_BEFORE),
            expected=stated.decode("latin-1"),
            actual=actual.decode(),
        )
    try:
        envelope = decoder.decode(view)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, OverflowError) as error:
        _check_header(view, path=path)
        unknown = _UNKNOWN_FIELD.search(str(error))
        if unknown is not None:
            raise UnsupportedFormat(
                f"{path} has a field {unknown[1]!r} that this lakebed does not know: upgrade lakebed.",
                path=path,
                field=unknown[1],
            ) from error
        raise Corruption(f"{path} is not a {what}: {error}", path=path, offset=_CHECKSUM_END + 1) from error
    _check_known(envelope, path=path)
    return envelope


def _check_header(view: memoryview, *, path: str) -> None:
    """Raise `UnsupportedFormat` if the envelope says so; any other fault is reported by the caller."""
    try:
        header = _headers.decode(view)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, OverflowError):
        return
    _check_known(header, path=path)


def _check_known(header: _Header | _ManifestEnvelope | _DeadlistEnvelope, *, path: str) -> None:
    unknown = sorted(set(header.features) - _FEATURES)
    if header.min_reader > FORMAT or unknown:
        needs = f"the features {', '.join(unknown)}" if unknown else f"format {header.min_reader}"
        raise UnsupportedFormat(
            f"{path} needs {needs}, which this lakebed (format {FORMAT}) does not know: upgrade lakebed.",
            path=path,
            format=header.format,
            features=unknown,
        )


def _checksum(view: memoryview) -> bytes:
    return b"%016x" % xxhash.xxh3_64_intdigest(view)
