"""The body of a request: it is taken out of its chunks and verified while it streams.

Owns: the encoding ``aws-chunked``, with signed chunks, with trailers, or with neither; and the checks of a body: its
announced length, the signed hash, ``Content-MD5``, and checksums of headers and trailers.

Invariants: a body that differs raises an error at its end at the latest. So an upload that reads to the end stores
none of it. At most one piece is in memory, however long a chunk is.

Pure: an iterator of pieces becomes another one. It runs where the store takes the pieces, not in the event loop.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, cast

import msgspec
from typing_extensions import Buffer

from lakebed.server.s3.checksums import HEADER, Checksum, is_checksum, new_checksum
from lakebed.server.s3.errors import s3_error
from lakebed.server.s3.signature import EMPTY_SHA256, UNSIGNED, Signature, is_sha256, is_signature, mismatch, sign

SIGNED_CHUNKS: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_CHUNKS_TRAILER: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_CHUNKS_TRAILER: Final = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_CHUNKED: Final = (SIGNED_CHUNKS, SIGNED_CHUNKS_TRAILER, UNSIGNED_CHUNKS_TRAILER)

_LINE_BYTES_MAX: Final = 4_096
_TRAILERS_MAX: Final = 16
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?\s*")
_TRAILER_SIGNATURE: Final = "x-amz-trailer-signature"


class BodyPlan(msgspec.Struct, frozen=True):
    """The encoding of a body, and the values that it must match.

    Attributes:
        signature, key: those of the request; they also sign its chunks.
        encoded_bytes: the announced length of the encoded body; None: unknown.
        decoded_bytes: the announced length of a chunked body after decoding; None: not announced.
        checksums: the values stated in headers, base64 by name.
        trailers: names of the announced trailers.
        md5: the value of ``Content-MD5``; None: not sent.
    """

    signature: Signature
    key: bytes
    decoded_bytes: int | None = None
    checksums: Mapping[str, str] = msgspec.field(default_factory=dict)
    trailers: frozenset[str] = frozenset()
    md5: str | None = None


def plan_body(signature: Signature, key: bytes, headers: Mapping[str, str]) -> BodyPlan:
    """Parse the headers of a request that describe its body.

    Args:
        headers: by their lower-case names.

    Raises:
        InvalidRequest: kind ``InvalidArgument``, ``InvalidDigest``, ``InvalidRequest``: a header is malformed;
            ``NotImplemented``: an unknown checksum, which could not be compared.
    """
    payload = signature.payload
    if payload not in _CHUNKED and payload != UNSIGNED and not is_sha256(payload):
        raise s3_error(
            "InvalidArgument", "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a STREAMING- word, or a SHA-256."
        )
    decoded_bytes: int | None = None
    if payload in _CHUNKED:
        text = headers.get("x-amz-decoded-content-length", "")
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise s3_error("MissingContentLength", "A chunked body needs x-amz-decoded-content-length.")
        decoded_bytes = int(text)
    md5 = headers.get("content-md5")
    if md5 is not None and len(_from_base64(md5)) != 16:
        raise s3_error("InvalidDigest", "The Content-MD5 you specified is not valid.")
    checksum_headers = [name for name in headers if name.startswith(HEADER)]
    checksums: dict[str, str] = {}
    for name in checksum_headers:
        checksum, value = new_checksum(name.removeprefix(HEADER)), headers[name]
        if checksum is not None:
            if len(_from_base64(value)) != len(checksum.digest()):
                raise s3_error("InvalidRequest", f"Value for {name} header is invalid.")
            checksums[name.removeprefix(HEADER)] = value
    announced = headers.get("x-amz-trailer", "")
    trailers = frozenset([name.strip().lower() for name in announced.split(",") if name.strip()])
    for name in (*checksum_headers, *trailers):
        if is_checksum(name) and new_checksum(name.removeprefix(HEADER)) is None:
            raise s3_error("NotImplemented", f"The checksum {name} is not known here, and would not be compared.")
    return BodyPlan(signature, key, decoded_bytes, checksums, trailers, md5)


def _from_base64(text: str) -> bytes:
    try:
        return b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""


def decode(pieces: Iterable[Buffer], plan: BodyPlan) -> Iterator[Buffer]:
    """Decode and verify a body. Yield its bytes.

    Raises:
        InvalidRequest: kind ``IncompleteBody``, ``SignatureDoesNotMatch``, ``XAmzContentSHA256Mismatch``,
            ``BadDigest``: after the last piece at the latest.
    """
    updates: list[Callable[[Buffer], None]] = []
    running_checksums = None
    if plan.checksums or plan.trailers:
        running_checksums = RunningChecksums(plan.checksums, [name.removeprefix(HEADER) for name in plan.trailers])
        updates.append(running_checksums.update)
    whole_hash = hashlib.sha256() if is_sha256(plan.signature.payload) else None
    if whole_hash is not None:
        updates.append(whole_hash.update)
    md5 = None if plan.md5 is None else hashlib.md5(usedforsecurity=False)
    if md5 is not None:
        updates.append(md5.update)
    trailers: dict[str, str] = {}
    size_bytes = 0
    for piece in _unchunk(pieces, plan, trailers) if plan.signature.payload in _CHUNKED else pieces:
        size_bytes += len(cast(bytes, piece))
        for update in updates:
            update(piece)
        yield piece
    if plan.decoded_bytes is not None and size_bytes != plan.decoded_bytes:
        raise s3_error(
            "IncompleteBody", f"The body has {size_bytes} bytes, and its headers announced {plan.decoded_bytes}."
        )
    if whole_hash is not None and whole_hash.hexdigest() != plan.signature.payload:
        raise s3_error(
            "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match what was computed."
        )
    if md5 is not None and md5.digest() != _from_base64(plan.md5 or ""):
        raise s3_error("BadDigest", "The Content-MD5 you specified did not match what we received.")
    if running_checksums is not None:
        _check_trailers(plan, trailers)
        running_checksums.check(trailers)


def _check_trailers(plan: BodyPlan, trailers: Mapping[str, str]) -> None:
    missing = plan.trailers - trailers.keys()
    if missing:
        raise s3_error("IncompleteBody", f"The trailer {min(missing)} was announced, and did not come.")


class RunningChecksums:
    """Computes checksums of a stream of bytes, and compares them with the stated values.

    Args:
        stated: base64 by name.
        more: names of further checksums, whose values are known only at the end.
    """

    def __init__(self, stated: Mapping[str, str], more: Iterable[str] = ()) -> None:
        self._stated = stated
        checksums = {name: new_checksum(name) for name in (*stated, *more)}
        self._running: dict[str, Checksum] = {name: new for name, new in checksums.items() if new is not None}

    @property
    def names(self) -> list[str]:
        """Names of the computed checksums."""
        return list(self._running)

    def update(self, piece: Buffer) -> None:
        """Add the next bytes."""
        for checksum in self._running.values():
            checksum.update(piece)

    def check(self, trailers: Mapping[str, str] = {}) -> None:
        """Compare the checksums with the stated values. Raises ``BadDigest``."""
        for name, checksum in self._running.items():
            stated_checksum = self._stated.get(name) or trailers.get(HEADER + name)
            if stated_checksum is not None and stated_checksum.strip() != b64encode(checksum.digest()).decode():
                raise s3_error("BadDigest", f"The {name.upper()} you specified did not match the calculated checksum.")


class _Reader:
    """Reads lines and stretches of bytes from pieces."""

    def __init__(self, pieces: Iterable[Buffer]) -> None:
        self._pieces = iter(pieces)
        self._view = memoryview(b"")

    def is_at_end(self) -> bool:
        """Whether all bytes were read."""
        while not self._view:
            piece = next(self._pieces, None)
            if piece is None:
                return True
            self._view = memoryview(piece)
        return False

    def _fill(self) -> None:
        if self.is_at_end():
            raise s3_error("IncompleteBody", "The body ended in the middle of its chunks.")

    def line(self) -> bytes:
        """Read a line. Return it without its end."""
        line = b""
        while not line.endswith(b"\n"):
            self._fill()
            if len(line) > _LINE_BYTES_MAX:
                raise _malformed()
            head = bytes(self._view[:_LINE_BYTES_MAX])
            line_part = head[: head.find(b"\n") + 1] or head
            line += line_part
            self._view = self._view[len(line_part) :]
        return line.removesuffix(b"\n").removesuffix(b"\r")

    def take(self, size_bytes: int) -> Iterator[memoryview]:
        """Read this many bytes."""
        while size_bytes:
            self._fill()
            piece = self._view[:size_bytes]
            self._view = self._view[len(piece) :]
            size_bytes -= len(piece)
            yield piece


def _malformed() -> Exception:
    return s3_error("IncompleteBody", "The chunks of the body are malformed.")


def _unchunk(pieces: Iterable[Buffer], plan: BodyPlan, trailers: dict[str, str]) -> Iterator[Buffer]:
    """Yield the content of the chunks of a body. Fill `trailers` at its end."""
    reader = _Reader(pieces)
    signature, is_chain = plan.signature, plan.signature.payload != UNSIGNED_CHUNKS_TRAILER
    previous = signature.signature
    head = f"AWS4-HMAC-SHA256-PAYLOAD\n{signature.timestamp}\n{signature.scope}\n"
    while True:
        match = _CHUNK.fullmatch(reader.line())
        if match is None or (is_chain and match[2] is None):
            raise _malformed()
        size_bytes = int(match[1], 16)
        digest = hashlib.sha256()
        for piece in reader.take(size_bytes):
            if is_chain:
                digest.update(piece)
            yield piece
        if is_chain:
            expected = sign(plan.key, f"{head}{previous}\n{EMPTY_SHA256}\n{digest.hexdigest()}")
            if not is_signature(match[2].decode(), expected):
                raise mismatch()
            previous = expected
        if size_bytes == 0:
            break
        if reader.line():
            raise _malformed()
    _read_trailers(reader, plan, trailers, previous=previous if is_chain else None)
    if not reader.is_at_end():
        raise _malformed()


def _read_trailers(reader: _Reader, plan: BodyPlan, trailers: dict[str, str], *, previous: str | None) -> None:
    """Read what follows the last chunk, up to the end of the body, and check its signature.

    Args:
        previous: the signature of the last chunk; None: chunks are not signed.
    """
    block = ""
    stated_signature = None
    while not reader.is_at_end() and (line := reader.line()):
        name, mark, value = line.decode("latin-1").partition(":")
        name = name.strip().lower()
        if not mark or len(trailers) >= _TRAILERS_MAX:
            raise _malformed()
        if name == _TRAILER_SIGNATURE:
            stated_signature = value.strip()
        else:
            trailers[name] = value.strip()
            block += f"{name}:{value.strip()}\n"
    if previous is not None and plan.signature.payload == SIGNED_CHUNKS_TRAILER:
        signature, digest = plan.signature, hashlib.sha256(block.encode("latin-1")).hexdigest()
        text = f"AWS4-HMAC-SHA256-TRAILER\n{signature.timestamp}\n{signature.scope}\n{previous}\n{digest}"
        if stated_signature is None or not is_signature(stated_signature, sign(plan.key, text)):
            raise mismatch()
