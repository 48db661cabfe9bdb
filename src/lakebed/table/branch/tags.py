"""Tags: named pins on snapshots, one file each at ``tag/tag-<name>``.

Owns: every verb on the tag files themselves. A tag is a copy of the snapshot's file plus Paimon's two optional fields
(``tagCreateTime``, ``tagTimeRetained``, written only when a lifetime is given) plus lakebed's marks in ``properties``.

    lakebed.tag-id          random; identifies our own create when a reply was lost
    lakebed.tag-automatic   "true": created by the automatic rules, whose retention counts it

Both names are on disk: DO NOT CHANGE.

Invariants:
- Creating is create-only: of two creators one wins.
- After its put, `create` checks that its source (snapshot or tag) still exists, and withdraws the tag if not. Expiry
  hides first and reads the tags afterwards, so one of the two always sees the other.
- A source that is a tag may not have been checked by its own creator yet, or that creator may have died before its
  check. Then the version may be partly deleted. So `create` also checks that no deletion of that version is under way,
  and then that its lists exist. A deletion is stored before it hides anything, and stays stored until its last file, a
  list, is deleted.
- In a branch, `create` looks for the branch after its put: a rename does not move a tag that is put after the branch's
  schemas are gone.
- Names that start with ``snapshot.``, ``tag.``, ``branch.`` or ``lakebed.`` are reserved. ``lakebed.pin.*`` are hidden
  pins that lakebed creates for itself (forks, rollbacks). No user verb shows or changes them; every deleting verb
  respects them.

Does not know: which data files a tag holds, or when they may be deleted; see `expire`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound
from lakebed.ids import new_uuid
from lakebed.objects.create_once import create_once
from lakebed.objects.port import ObjectMeta, ObjectStore, has_object
from lakebed.runtime import Environment
from lakebed.table.branch.snapshots import SnapshotLog
from lakebed.table.branch.tag_files import load_tags
from lakebed.table.branch.tag_index import TagEntry, load_entries
from lakebed.table.branch.unfinished import Deletion, load_deletions
from lakebed.table.codec.snapshot_json import decode_snapshot, decode_tag, encode_tag, json_object
from lakebed.table.model.layout import Layout, parse_tag
from lakebed.table.model.model import Snapshot, Tag
from lakebed.texts import LONG_MAX, did_you_mean, is_utf8, list_some

HIDDEN_PREFIX = "lakebed.pin."
"""Prefix of the tags that lakebed creates for itself. DO NOT CHANGE: on disk."""

TAG_ID = "lakebed.tag-id"
TAG_AUTOMATIC = "lakebed.tag-automatic"

_RESERVED = ("snapshot.", "tag.", "branch.", "lakebed.")
_NAME_BYTES_MAX = 255 - len("tag-")


@dataclass(frozen=True, slots=True)
class Source:
    """What a tag is created from: the file of a snapshot or a tag, and its path."""

    body: bytes
    path: str


def check_tag_name(name: str, *, of: str = "tag") -> None:
    """Raise `InvalidRequest` unless `name` may be given to a tag; the message says which rule it breaks.

    Args:
        name: what the user gave.
        of: the kind of thing that gets the name; branches follow the same rules.
    """
    problem = None
    if not isinstance(name, str) or not name.strip():
        problem = "is blank"
    elif name.isdecimal():
        problem = "is all digits, which would read as a snapshot id"
    elif "/" in name or "\\" in name or ".." in name:
        problem = "holds '/', '\\' or '..', which would read as a path"
    elif any(ord(char) < 0x20 or ord(char) == 0x7F for char in name):
        problem = "holds a control character"
    elif len(name.encode("utf-8", "surrogatepass")) > _NAME_BYTES_MAX:
        problem = f"is longer than {_NAME_BYTES_MAX} bytes"
    elif name.startswith(_RESERVED):
        problem = f"starts with one of the reserved words {', '.join(_RESERVED)}"
    elif not is_utf8(name):
        problem = "is not valid Unicode"
    if problem is not None:
        raise InvalidRequest(
            f"The {of} name {name!r} {problem}: choose another name.", kind=f"invalid_{of}_name", **{of: name}
        )


def is_hidden(name: str) -> bool:
    """Whether a tag is one of lakebed's own pins."""
    return name.startswith(HIDDEN_PREFIX)


def is_automatic(tag: Tag) -> bool:
    """Whether the automatic rules created this tag."""
    return tag.snapshot.properties.get(TAG_AUTOMATIC) == "true"


TagList = list[Tag]
NameList = list[str]
PairList = list[tuple[str, ObjectMeta]]


class Tags:
    """The tags of one branch. Thread-safe.

    Args:
        default_retained_ms: ``tag.default-time-retained``, called at each create; None: kept until deleted.
        confirm: called after each put; raises `NotFound` when the branch is gone.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        layout: Layout,
        snapshots: SnapshotLog,
        environment: Environment,
        default_retained_ms: Callable[[], int | None] = lambda: None,
        confirm: Callable[[], object] = lambda: None,
    ) -> None:
        self._store = store
        self._layout = layout
        self._snapshots = snapshots
        self._environment = environment
        self._default_retained_ms = default_retained_ms
        self._confirm = confirm

    # ---- looking

    def exists(self, name: str) -> bool:
        """Whether the tag exists; False for a name that no tag may have. Cost: 1 HEAD."""
        try:
            check_tag_name(name)
            self._store.head(self._layout.tag(name))
        except (NotFound, InvalidRequest):
            return False
        return True

    def tag(self, name: str) -> Tag:
        """One tag. Raises `NotFound` with the nearest names, `Corruption`. Cost: 1 GET (a miss adds 1 LIST)."""
        tag = None if is_hidden(name) else self.find(name)
        if tag is None:
            raise self._absent(name)
        return tag

    def find(self, name: str) -> Tag | None:
        """One tag, hidden ones included, or None. Cost: 1 GET."""
        try:
            body = bytes(self._store.get(self._layout.tag(name)))
        except (NotFound, InvalidRequest):
            return None
        return decode_tag(body, name=name, path=self._layout.tag(name))

    def names(self) -> NameList:
        """Names of all tags, sorted, hidden pins left out. Cost: 1 LIST a thousand."""
        return [name for name in self.all_names() if not is_hidden(name)]

    def all_names(self) -> NameList:
        """Names of all tags, sorted, hidden pins included. Cost: 1 LIST a thousand."""
        return [name for name, _ in self._list_files()]

    def list(self) -> TagList:
        """All tags, oldest snapshot first, then by name; hidden pins left out.

        Cost: 1 LIST a thousand + 1 GET a tag that this process has not read before (see `tag_files`).
        """
        return [tag for tag in self.list_all() if not is_hidden(tag.name)]

    def list_all(self) -> TagList:
        """All tags and lakebed's hidden pins, oldest snapshot first. Every collector must honour them.

        Cost: as `list`.
        """
        tags = load_tags(self._store, self._list_files(), environment=self._environment)
        return sorted(tags, key=lambda tag: (tag.snapshot.id, tag.name))

    def write_time_ms(self) -> dict[str, int]:
        """When each tag's file was last written, by the store's clock; hidden pins too. Cost: 1 LIST a thousand."""
        return {name: meta.modified_ms for name, meta in self._list_files()}

    def _list_files(self) -> PairList:
        """Name and listing of every tag file, by name."""
        metas = self._store.list(self._layout.tag_folder)
        return sorted((name, meta) for meta in metas if (name := parse_tag(meta.path)) is not None)

    def index(self, listed: Iterable[ObjectMeta] | None = None) -> tuple[TagEntry, ...]:
        """Every tag, hidden pins included, by snapshot id, then name. Cost: 1 LIST + 1 GET, and 1 GET an unknown tag.

        Args:
            listed: a listing of the tag folder, taken by the caller just now; None: it is taken here.
        """
        return load_entries(self._store, layout=self._layout, environment=self._environment, listed=listed)

    def previous(self, name: str) -> Tag | None:
        """The tag whose commit time is the newest before this one's; None for the first. Raises `NotFound`."""
        time_ms = self.tag(name).snapshot.time_ms
        earlier = [tag for tag in self.list() if tag.snapshot.time_ms < time_ms]
        return max(earlier, key=lambda tag: tag.snapshot.time_ms, default=None)

    def next(self, name: str) -> Tag | None:
        """The tag whose commit time is the oldest after this one's; None for the last. Raises `NotFound`."""
        time_ms = self.tag(name).snapshot.time_ms
        later = [tag for tag in self.list() if tag.snapshot.time_ms > time_ms]
        return min(later, key=lambda tag: tag.snapshot.time_ms, default=None)

    def tagged_snapshots(self) -> Iterator[Snapshot]:
        """Snapshots that some tag holds, oldest first, each once."""
        seen_ids: set[int] = set()
        for tag in self.list():
            if tag.snapshot.id not in seen_ids:
                seen_ids.add(tag.snapshot.id)
                yield tag.snapshot

    def of_snapshot(self, snapshot_id: int) -> Tag | None:
        """A tag that holds this snapshot, or None. Cost: 1 LIST + 1 GET of the index + 1 GET."""
        for entry in self.index():
            if entry.snapshot_id == snapshot_id:
                tag = self.find(entry.name)
                if tag is not None and tag.snapshot.id == snapshot_id:
                    return tag
        return None

    # ---- changing

    def source(self, *, snapshot_id: int | None = None, tag: str | None = None) -> Source:
        """The file to tag: the newest snapshot, one by id (or a tag that still holds it), or another tag's.

        Raises `NotFound`: no snapshot at all, or neither a snapshot nor a tag of that id, or no such tag.
        """
        if tag is not None:
            return self._tag_source(tag)
        if snapshot_id is None:
            newest = self._snapshots.latest_body()
            if newest is None:
                raise NotFound(
                    "The table has no snapshot yet, so there is nothing to pin: write something first.",
                    kind="table_empty",
                )
            return Source(body=newest[1], path=self._layout.snapshot(newest[0]))
        try:
            return Source(body=self._snapshots.body(snapshot_id), path=self._layout.snapshot(snapshot_id))
        except NotFound:
            holder = self.of_snapshot(snapshot_id)
            if holder is None:
                raise self._snapshots.absent(snapshot_id) from None
            return self._tag_source(holder.name)

    def create(
        self,
        name: str,
        *,
        source: Source | None = None,
        lifetime_ms: int | None = None,
        if_not_exists: bool = False,
        marks: Mapping[str, str] | None = None,
    ) -> Tag:
        """Pin a snapshot under a name.

        Args:
            source: from `source(...)`; None is the newest snapshot.
            lifetime_ms: lifetime from now. None: that of ``tag.default-time-retained``, or without it until deleted.
            if_not_exists: return the existing tag instead of raising.
            marks: further ``properties``, such as `TAG_AUTOMATIC`.

        Raises:
            InvalidRequest: the name breaks a rule, or the lifetime is negative.
            AlreadyExists: the tag exists.
            Conflict: the source expired while it was tagged; the tag was withdrawn.
        Cost, from the newest snapshot: 1 GET + 2 HEADs + 1 LIST + 1 PUT.
        """
        check_tag_name(name)
        tag_source = source or self.source()
        body = self._body(tag_source, lifetime_ms=self._lifetime_ms(name, lifetime_ms), marks=marks)
        return self._put_new(name, body, source=tag_source, if_not_exists=if_not_exists)

    def pin_hidden(self, name: str, *, source: Source) -> Tag:
        """Pin a snapshot for internal use, under `HIDDEN_PREFIX` + name, by the protocol of `create`; no lifetime.

        Raises `AlreadyExists`, `Conflict`. Cost: 1 PUT + 1 HEAD.
        """
        body = self._body(source, lifetime_ms=None)
        return self._put_new(HIDDEN_PREFIX + name, body, source=source, if_not_exists=False)

    def copy_hidden(self, old: str, new: str, *, marks: Mapping[str, str]) -> Tag:
        """Pin the version that another hidden pin holds. That pin must exist until this returns. No lifetime.

        Raises `AlreadyExists`; `NotFound`: the other pin is gone, and this one was withdrawn. Cost: 2 GETs + 1 PUT.
        """
        source = self._tag_source(HIDDEN_PREFIX + old)
        body = self._body(source, lifetime_ms=None, marks=marks)
        self._create(HIDDEN_PREFIX + new, body)
        try:
            if self._tag_source(HIDDEN_PREFIX + old).body != source.body:
                raise self._absent(HIDDEN_PREFIX + old)
        except NotFound:
            self._withdraw(HIDDEN_PREFIX + new, body)
            raise
        return decode_tag(body, name=HIDDEN_PREFIX + new, path=self._layout.tag(HIDDEN_PREFIX + new))

    def unpin_hidden(self, name: str) -> None:
        """Remove a hidden pin; removing a missing one is a no-op. Cost: 1 DELETE."""
        self._store.delete([self._layout.tag(HIDDEN_PREFIX + name)])

    def replace(
        self,
        name: str,
        *,
        source: Source | None = None,
        lifetime_ms: int | None = None,
        marks: Mapping[str, str] | None = None,
    ) -> Tag:
        """Point an existing tag at another snapshot, in one put. Raises as `create`, and `NotFound`.

        The caller (`expire`) deletes files that only the old target used.
        Cost: 2 GETs + 1 PUT + 1 HEAD, and 1 probe for the newest snapshot.
        """
        check_tag_name(name)
        before = self._tag_source(name)
        tag_source = source or self.source()
        body = self._body(tag_source, lifetime_ms=self._lifetime_ms(name, lifetime_ms), marks=marks)
        self._store.put(self._layout.tag(name), body)
        if not self._is_there(tag_source):
            # The files of both versions may be under deletion now. The old pin is at least what the caller had before.
            self._store.put(self._layout.tag(name), before.body)
            raise self._source_expired(name)
        self._confirm()
        return decode_tag(body, name=name, path=self._layout.tag(name))

    def rename(self, old: str, new: str) -> Tag:
        """Rename a tag: create the new one, then delete the old one; a crash leaves both.

        Raises `NotFound`, `AlreadyExists`, `InvalidRequest`. Cost: 1 GET + 1 PUT + 1 HEAD + 1 DELETE.
        """
        check_tag_name(new)
        if is_hidden(old):
            raise self._absent(old)
        source = self._tag_source(old)
        document = json_object(source.body, source.path)
        time_fields: dict[str, Any] = {
            key: document[key] for key in ("tagCreateTime", "tagTimeRetained") if key in document
        }
        marks = {TAG_ID: new_uuid(self._environment.rng)}
        body = _encode_marked(source, marks=marks, keep_marks=True, fields=time_fields)
        tag = self._put_new(new, body, source=source, if_not_exists=False)
        self.remove_files([old])
        return tag

    def remove_files(self, names: NameList) -> None:
        """Delete tag files only; the caller handles the data files. Deleting a missing file is a no-op."""
        self._store.delete([self._layout.tag(name) for name in names])

    # ---- the protocol

    def _put_new(self, name: str, body: bytes, *, source: Source, if_not_exists: bool) -> Tag:
        try:
            self._create(name, body)
        except AlreadyExists as error:
            existing = self.find(name)
            if if_not_exists and existing is not None:
                return existing
            raise AlreadyExists(
                f"The tag {name!r} exists already: delete it, replace it, or choose another name.",
                kind="tag_exists",
                tag=name,
            ) from error
        if not self._is_there(source):
            self._withdraw(name, body)
            raise self._source_expired(name)
        try:
            self._confirm()
        except NotFound:
            self._withdraw(name, body)
            raise
        return decode_tag(body, name=name, path=self._layout.tag(name))

    def _create(self, name: str, body: bytes) -> None:
        create_once(
            self._store,
            self._layout.tag(name),
            body,
            environment=self._environment,
            is_ours=lambda other: _document_id(bytes(other)) == _document_id(body),
        )

    def _withdraw(self, name: str, body: bytes) -> None:
        path = self._layout.tag(name)
        with suppress(NotFound):
            if _document_id(bytes(self._store.get(path))) == _document_id(body):
                self._store.delete([path])

    def _is_there(self, source: Source) -> bool:
        """Whether the source still holds the version. A tag may have been pointed at another one meanwhile."""
        try:
            if parse_tag(source.path) is None:
                self._store.head(source.path)
                return True
            now = decode_snapshot(self._store.get(source.path), path=source.path)
        except NotFound:
            return False
        snapshot = decode_snapshot(source.body, path=source.path)
        return now.id == snapshot.id and self._is_whole(snapshot)

    def _is_whole(self, snapshot: Snapshot) -> bool:
        """Whether no deletion has deleted, or may be deleting, files of a version that a tag holds."""
        if self._snapshots.exists(snapshot.id):
            return True
        for deletion in load_deletions(self._store, self._layout):
            if isinstance(deletion, Deletion) and deletion.rollback is None and deletion.hides(snapshot.id):
                return False
        names = (snapshot.base_manifest_list, snapshot.delta_manifest_list)
        return all(has_object(self._store, self._layout.manifest(name)) for name in names)

    def _lifetime_ms(self, name: str, lifetime_ms: int | None) -> int | None:
        if lifetime_ms is not None and lifetime_ms < 0:
            raise InvalidRequest(f"The lifetime of tag {name!r} cannot be negative.", kind="invalid_lifetime", tag=name)
        if lifetime_ms is not None and lifetime_ms > LONG_MAX:
            raise InvalidRequest(
                f"The lifetime of tag {name!r} is above 2^63 - 1 milliseconds: leave it out, and the tag stays until "
                "it is deleted.",
                kind="invalid_lifetime",
                tag=name,
            )
        return self._default_retained_ms() if lifetime_ms is None else lifetime_ms

    def _body(self, source: Source, *, lifetime_ms: int | None, marks: Mapping[str, str] | None = None) -> bytes:
        all_marks = {**(marks or {}), TAG_ID: new_uuid(self._environment.rng)}
        return encode_tag(
            _encode_marked(source, marks=all_marks, keep_marks=False, fields={}),
            create_time_ms=None if lifetime_ms is None else self._environment.clock.now_ms(),
            lifetime_ms=lifetime_ms,
        )

    def _tag_source(self, name: str) -> Source:
        try:
            body = bytes(self._store.get(self._layout.tag(name)))
        except (NotFound, InvalidRequest) as missing:
            raise self._absent(name) from missing
        return Source(body=body, path=self._layout.tag(name))

    # ---- sentences

    def _absent(self, name: str) -> NotFound:
        names = self.names()
        choices = f"it has {list_some(names, count_max=8)}" if names else "it has none"
        hint = did_you_mean(name, names)
        return NotFound(f"The table has no tag {name!r}: {choices}.{hint}", kind="tag_not_found", tag=name)

    def _source_expired(self, name: str) -> Conflict:
        return Conflict(
            f"The snapshot for the tag {name!r} expired while the tag was created, so the tag was withdrawn: choose "
            "another snapshot.",
            kind="source_expired",
            tag=name,
        )


def _encode_marked(source: Source, *, marks: Mapping[str, str], keep_marks: bool, fields: Mapping[str, Any]) -> bytes:
    """The source's JSON with other marks, and with only the given ones of a tag's own fields."""
    document = json_object(source.body, source.path)
    properties = dict(document.get("properties") or {})
    if not keep_marks:
        properties.pop(TAG_AUTOMATIC, None)
    document.pop("tagCreateTime", None)
    document.pop("tagTimeRetained", None)
    document["properties"] = {**properties, **marks}
    return msgspec.json.encode({**document, **fields})


def _document_id(body: bytes) -> str | None:
    try:
        document = msgspec.json.decode(body)
        return document["properties"][TAG_ID] if isinstance(document, dict) else None
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
