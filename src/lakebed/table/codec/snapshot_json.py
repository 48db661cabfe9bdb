"""Snapshot and tag JSON, as other clients read and write it. Pure.

Owns: the names of the format (version 3, DO NOT CHANGE).

Invariants:
- A tag is the snapshot's own JSON with at most two members appended, so members unknown to lakebed survive.
- A file that is not such JSON is `Corruption` with its path; a newer version is `UnsupportedFormat`.
- `Tag.create_time_ms` is written as the UTC wall clock: the format's local date-time has no zone.
"""

from __future__ import annotations

import datetime
from typing import Any, Final

import msgspec
from typing_extensions import Buffer

from lakebed.decoding import decode_json, json_decoder
from lakebed.duration import parse_duration_ms
from lakebed.errors import Corruption, InvalidRequest, UnsupportedFormat
from lakebed.table.model.model import CommitKind, Snapshot, Tag

SNAPSHOT_VERSION_MAX: Final = 3
_EPOCH: Final = datetime.datetime(1970, 1, 1)
_TAG_MEMBERS: Final = ("tagCreateTime", "tagTimeRetained")


class _SnapshotJson(msgspec.Struct, rename="camel", omit_defaults=True):
    """The members of a snapshot file, in the order in which they are written."""

    version: int
    id: int
    schema_id: int
    base_manifest_list: str
    delta_manifest_list: str
    commit_user: str
    commit_identifier: int
    commit_kind: CommitKind
    time_millis: int
    uuid: str | None = None
    base_manifest_list_size: int | None = None
    delta_manifest_list_size: int | None = None
    changelog_manifest_list: str | None = None
    changelog_manifest_list_size: int | None = None
    index_manifest: str | None = None
    total_record_count: int | None = None
    delta_record_count: int | None = None
    changelog_record_count: int | None = None
    watermark: int | None = None
    statistics: str | None = None
    properties: dict[str, str] | None = None
    next_row_id: int | None = None


class _TagJson(_SnapshotJson):
    """The members of a tag file."""

    tag_create_time: Any = None
    tag_time_retained: Any = None


_TAG_DECODER: Final = json_decoder(_TagJson)
_SAME_NAMES: Final = tuple(
    name for name in _SnapshotJson.__struct_fields__ if name not in ("time_millis", "properties")
)

_KNOWN: Final = frozenset((*_SnapshotJson.__struct_encode_fields__, "writerVersion"))
"""Members that a proposed snapshot may have. The version of the program that wrote it has no influence."""


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of ``snapshot/snapshot-<id>``; absent members are left out."""
    members = {name: getattr(snapshot, name) for name in _SAME_NAMES}
    body = _SnapshotJson(time_millis=snapshot.time_ms, properties=dict(snapshot.properties) or None, **members)
    return msgspec.json.format(msgspec.json.encode(body), indent=2)


def decode_snapshot(body: Buffer, *, path: str) -> Snapshot:
    """The snapshot a file holds.

    Raises:
        Corruption: not JSON, or a member is missing or of the wrong type; names the path.
        UnsupportedFormat: a version above `SNAPSHOT_VERSION_MAX`.
    """
    return _snapshot_of(_decode(body, path))


def decode_proposed(body: Buffer) -> Snapshot:
    """Decode a snapshot that another client asks to commit.

    Raises `InvalidRequest`: it is not a snapshot of version 3, or it has a member that this lakebed does not know and
    that may decide what the snapshot means.
    """
    try:
        snapshot = decode_snapshot(body, path="The snapshot")
    except (Corruption, UnsupportedFormat) as error:
        raise InvalidRequest(error.message, kind="invalid_snapshot") from error
    members = json_object(body, "The snapshot")
    unknown_members = sorted(name for name, value in members.items() if name not in _KNOWN and value is not None)
    if unknown_members or members["version"] != SNAPSHOT_VERSION_MAX:
        reason = f"has the member {unknown_members[0]!r}" if unknown_members else f"has version {members['version']}"
        raise InvalidRequest(
            f"The snapshot {reason}, which this lakebed does not know and therefore does not commit: upgrade lakebed, "
            "or use an older client.",
            kind="invalid_snapshot",
        )
    return snapshot


def _decode(body: Buffer, path: str) -> _TagJson:
    """The members of a snapshot or a tag."""
    try:
        document = _TAG_DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        version = json_object(body, path).get("version")
        check_version(version, what="snapshot", version_max=SNAPSHOT_VERSION_MAX, path=path)
        raise Corruption(f"{path} is not a snapshot: {error}.", path=path) from error
    check_version(document.version, what="snapshot", version_max=SNAPSHOT_VERSION_MAX, path=path)
    return document


def _snapshot_of(document: _SnapshotJson) -> Snapshot:
    members = {name: getattr(document, name) for name in _SAME_NAMES}
    # Versions 1 and 2 may leave these counts out.
    members["total_record_count"] = document.total_record_count or 0
    members["delta_record_count"] = document.delta_record_count or 0
    return Snapshot(time_ms=document.time_millis, properties=document.properties or {}, **members)


def check_version(version: object, *, what: str, version_max: int, path: str) -> None:
    """Raise `UnsupportedFormat` for a file of a newer version, which may have other members."""
    if isinstance(version, int) and version > version_max:
        raise UnsupportedFormat(
            f"{path} is a {what} of version {version}; this lakebed reads up to version {version_max}: "
            "upgrade lakebed.",
            path=path,
            version=version,
        )


def json_object(body: Buffer, path: str) -> dict[str, Any]:
    """The members of a snapshot or tag file. Raises `Corruption`."""
    try:
        return decode_json(body, dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corruption(f"{path} is not a JSON object: {error}.", path=path) from error


def encode_tag(snapshot_body: Buffer, *, create_time_ms: int | None = None, lifetime_ms: int | None = None) -> bytes:
    """The bytes of ``tag/tag-<name>``: a snapshot (or another tag) copied, with this tag's own lifetime.

    Args:
        snapshot_body: the bytes of a snapshot or tag file; members that lakebed does not know are kept.
        create_time_ms: Unix ms, UTC; written only together with a lifetime.
        lifetime_ms: None: kept until deleted.
    """
    members = json_object(snapshot_body, "the tagged snapshot")
    if lifetime_ms is None and not any(name in members for name in _TAG_MEMBERS):
        return bytes(snapshot_body)
    for name in _TAG_MEMBERS:
        members.pop(name, None)
    if lifetime_ms is not None:
        if create_time_ms is not None:
            members["tagCreateTime"] = _local_date_time(create_time_ms)
        members["tagTimeRetained"] = lifetime_ms / 1000
    return msgspec.json.format(msgspec.json.encode(members), indent=2)


def decode_tag(body: Buffer, *, name: str, path: str) -> Tag:
    """The tag a file holds. Raises `Corruption`, `UnsupportedFormat`: see `decode_snapshot`."""
    document = _decode(body, path)
    create_time, time_retained = document.tag_create_time, document.tag_time_retained
    try:
        return Tag(
            name,
            _snapshot_of(document),
            None if create_time is None else _local_date_time_ms(create_time),
            None if time_retained is None else _retention_ms(time_retained),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise Corruption(f"{path} has an unreadable lifetime: {error}.", path=path) from error


def _local_date_time(time_ms: int) -> list[int]:
    """``[year, month, day, hour, minute, second, nanosecond]`` without trailing zeros after the minute."""
    moment = _EPOCH + datetime.timedelta(milliseconds=time_ms)
    parts = [moment.year, moment.month, moment.day, moment.hour, moment.minute]
    nanos = moment.microsecond * 1000
    if moment.second or nanos:
        parts.append(moment.second)
    return [*parts, nanos] if nanos else parts


def _local_date_time_ms(value: Any) -> int:
    if isinstance(value, str):
        moment = datetime.datetime.fromisoformat(value).replace(tzinfo=None)
    else:
        year, month, day, hour, minute, second, nanos = [*value, 0, 0, 0, 0][:7]
        moment = datetime.datetime(year, month, day, hour, minute, second, nanos // 1000)
    return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)


def _retention_ms(value: Any) -> int:
    """Seconds as a number, or ISO 8601 text: other clients write either."""
    if isinstance(value, str):
        return parse_duration_ms(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InvalidRequest(f"{value!r} is not a lifetime.")
    return round(value * 1000)
