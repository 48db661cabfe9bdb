"""Listings: ListObjects of both versions, ListObjectVersions.

Owns: pages and their tokens. A page of a branch costs as much as a page of the REST interface. In the bucket of a
repository, as long as the prefix contains no reference, the listing shows the branches as common prefixes.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from lakebed.errors import InvalidRequest, NotFound
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_prefix
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import list_branches
from lakebed.repo.references.refs import resolve
from lakebed.repo.staging.listing import Listed
from lakebed.repo.staging.view import View, read_reference
from lakebed.server.s3.call import Place, S3Call
from lakebed.server.s3.errors import XML_TYPE, s3_error
from lakebed.server.s3.objects import iso_time
from lakebed.server.s3.operations import Operations
from lakebed.server.s3.xml import Value, can_hold, render

LISTING: Final = Operations()
KEYS_MAX: Final = 1_000
STORAGE_CLASS: Final = "STANDARD"


@dataclass(frozen=True, slots=True)
class KeyPage:
    """A requested page of keys."""

    prefix: str
    after: str
    delimiter: str
    amount: int


def list_keys(context: RepositoryContext, place: Place, page: KeyPage) -> list[Listed]:
    """Return keys and common prefixes of a bucket, in the order of their bytes: at most `page.amount`.

    Args:
        place: the place of the bucket.

    Raises:
        InvalidRequest: kind ``NoSuchBucket``: it is the bucket of a branch that does not exist.
    """
    check_prefix(page.prefix)
    if place.is_branch_bucket:
        try:
            return _list_reference(context, place.ref, page)
        except NotFound as error:
            if error.kind != "reference_not_found":
                raise
            raise s3_error("NoSuchBucket", error.message) from error
    ref, mark, prefix = page.prefix.partition("/")
    if not mark:
        return list(islice(_list_branches(context, page), page.amount))
    return _list_below(context, ref, prefix, page)


def _list_reference(context: RepositoryContext, ref: str, page: KeyPage) -> list[Listed]:
    def read(view: View) -> list[Listed]:
        return list(view.list(page.prefix, after=page.after, delimiter=page.delimiter, amount=page.amount))

    return read_reference(context, ref, read)


def _list_below(context: RepositoryContext, ref: str, prefix: str, page: KeyPage) -> list[Listed]:
    """Return the keys of a reference, prefixed by it. Return none if it is missing, deleted, or an invalid name."""
    begin = ref + "/"
    after = ""
    if page.after.encode() >= begin.encode():
        if not page.after.startswith(begin):
            return []  # after all keys of the reference
        after = page.after[len(begin) :]
    try:
        items = _list_reference(context, ref, KeyPage(prefix, after, page.delimiter, page.amount))
    except (NotFound, InvalidRequest) as error:
        if error.kind not in ("reference_not_found", "invalid_reference"):
            raise
        return []
    return [Listed(begin + item.path, item.entry) for item in items]


def _list_branches(context: RepositoryContext, page: KeyPage) -> Iterator[Listed]:
    """Yield the keys of the branches whose names begin with a prefix, lazily."""
    if len(page.delimiter) > 1:
        raise s3_error("NotImplemented", "In front of the reference a delimiter has one character: name a reference.")
    names = sorted(
        (name for name, _ in list_branches(context, prefix=page.prefix)), key=lambda name: f"{name}/".encode()
    )
    after_key = page.after
    for name in names:
        key = f"{name}/"
        position = key.find(page.delimiter, len(page.prefix)) if page.delimiter else -1
        if position >= 0:
            common = key[: position + 1]
            if common.encode() > after_key.encode() or (
                after_key == page.after and _is_cut(context, name, common, page)
            ):
                after_key = common
                yield Listed(common)
            continue
        after = page.after
        while rows := _list_below(context, name, "", KeyPage("", after, page.delimiter, page.amount)):
            yield from rows
            if len(rows) < page.amount:
                break
            after = rows[-1].path


def _is_cut(context: RepositoryContext, name: str, common: str, page: KeyPage) -> bool:
    """Whether a page begins within a common prefix, and this branch has keys of that prefix after the page's start."""
    if page.after == common or not page.after.startswith(common):
        return False
    return bool(_list_below(context, name, "", KeyPage("", page.after, "", 1)))


def _token(key: str) -> str:
    return urlsafe_b64encode(key.encode()).decode()


def _key_of(token: str) -> str:
    try:
        return b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise s3_error("InvalidArgument", "The continuation token provided is incorrect.") from None


@dataclass(frozen=True, slots=True)
class Shown:
    """A page for a reply: its rows, and whether there are more."""

    rows: list[Listed]
    is_truncated: bool

    @property
    def last(self) -> str:
        """The last key or common prefix."""
        return self.rows[-1].path if self.rows else ""


async def _read(call: S3Call, *, after: str) -> tuple[Shown, int]:
    """Return a page, and how many keys were requested."""
    amount = call.number("max-keys", default=KEYS_MAX, high=KEYS_MAX)
    context = await call.context()
    if amount == 0:
        if call.place.is_branch_bucket:
            await call.look(resolve, context, call.place.ref)
        return Shown([], False), 0
    page = KeyPage(call.pairs.get("prefix", ""), after, call.pairs.get("delimiter", ""), amount + 1)
    rows = await call.heavy(list_keys, context, call.place, page)
    return Shown(rows[:amount], len(rows) > amount), amount


class KeyEncoding:
    """The encoding of keys in a reply: unchanged, or with percent signs."""

    def __init__(self, call: S3Call) -> None:
        self.name = call.pairs.get("encoding-type", "")
        if self.name not in ("", "url"):
            raise s3_error("InvalidArgument", "Invalid Encoding Method specified in Request: use url.")

    def __call__(self, key: str) -> str:
        return quote(key, safe="/-_.~*") if self.name else key

    def fields(self) -> list[tuple[str, Value]]:
        """Return the fields of the reply that tell the encoding."""
        return [("EncodingType", self.name)] if self.name else []


def owner_fields(owner: str) -> list[tuple[str, Value]]:
    """Return the fields for the owner: the caller is shown as the owner of everything."""
    return [("ID", owner), ("DisplayName", owner)]


def _contents(path: str, entry: Entry) -> list[tuple[str, Value]]:
    return [
        ("Key", path),
        ("LastModified", iso_time(entry.modified_ms)),
        ("ETag", f'"{entry.checksum}"'),
        ("Size", entry.size_bytes),
        ("StorageClass", STORAGE_CLASS),
    ]


def _rows(page: Shown, encode: KeyEncoding, *, owner: str | None) -> list[tuple[str, Value]]:
    fields: list[tuple[str, Value]] = []
    commons: list[tuple[str, Value]] = []
    tail: list[tuple[str, Value]] = [] if owner is None else [("Owner", owner_fields(owner))]
    for item in page.rows:
        if item.entry is None:
            commons.append(("CommonPrefixes", [("Prefix", encode(item.path))]))
        else:
            fields.append(("Contents", [*_contents(encode(item.path), item.entry), *tail]))
    return fields + commons


def _head(
    call: S3Call, encode: KeyEncoding, page: Shown, amount: int, *, encodes_prefix: bool = True
) -> list[tuple[str, Value]]:
    """Return the fields before the rows.

    In version 1 clients do not decode the prefix, so it is encoded only if needed.
    """
    prefix = call.pairs.get("prefix", "")
    encodes_prefix = encodes_prefix or not can_hold(prefix)
    fields: list[tuple[str, Value]] = [
        ("Name", call.target.bucket),
        ("Prefix", encode(prefix) if encodes_prefix else prefix),
    ]
    delimiter = call.pairs.get("delimiter", "")
    if delimiter:
        fields.append(("Delimiter", encode(delimiter)))
    return [*fields, ("MaxKeys", amount), *encode.fields(), ("IsTruncated", page.is_truncated)]


@LISTING.add("GET", "bucket", "ListObjectsV2", needs="read", query=("list-type",))
async def list_objects_v2(call: S3Call) -> Response:
    """List keys, with tokens."""
    if call.pairs["list-type"] != "2":
        raise s3_error("InvalidArgument", "list-type is 2, or is left out.")
    encode = KeyEncoding(call)
    token, start_after = call.pairs.get("continuation-token"), call.pairs.get("start-after", "")
    page, amount = await _read(call, after=_key_of(token) if token else start_after)
    fields = [*_head(call, encode, page, amount), ("KeyCount", len(page.rows))]
    if start_after:
        fields.append(("StartAfter", encode(start_after)))
    if token is not None:
        fields.append(("ContinuationToken", token))
    if page.is_truncated:
        fields.append(("NextContinuationToken", _token(page.last)))
    owner = call.caller.id if call.pairs.get("fetch-owner") == "true" else None
    return Response(render("ListBucketResult", [*fields, *_rows(page, encode, owner=owner)]), media_type=XML_TYPE)


@LISTING.add("GET", "bucket", "ListObjectVersions", needs="read", query=("versions",))
async def list_object_versions(call: S3Call) -> Response:
    """List objects, each with the version null: there are no others, and tools clean up with this."""
    encode = KeyEncoding(call)
    marker = call.pairs.get("key-marker", "")
    page, amount = await _read(call, after=marker)
    fields = [*_head(call, encode, page, amount), ("KeyMarker", encode(marker)), ("VersionIdMarker", "")]
    if page.is_truncated:
        fields += [("NextKeyMarker", encode(page.last)), ("NextVersionIdMarker", "null")]
    latest: list[tuple[str, Value]] = [("VersionId", "null"), ("IsLatest", True)]
    for name, value in _rows(page, encode, owner=call.caller.id):
        is_key = name == "Contents"
        assert not isinstance(value, str | int)
        fields.append(("Version", [*value, *latest]) if is_key else (name, value))
    return Response(render("ListVersionsResult", fields), media_type=XML_TYPE)


async def list_objects(call: S3Call) -> Response:
    """List keys, with markers."""
    encode = KeyEncoding(call)
    marker = call.pairs.get("marker", "")
    page, amount = await _read(call, after=marker)
    fields = [*_head(call, encode, page, amount, encodes_prefix=False), ("Marker", encode(marker))]
    if page.is_truncated:  # even without a delimiter: rclone otherwise uses the last key, and decodes it twice
        fields.append(("NextMarker", encode(page.last)))
    rows = _rows(page, encode, owner=call.caller.id)
    return Response(render("ListBucketResult", [*fields, *rows]), media_type=XML_TYPE)
