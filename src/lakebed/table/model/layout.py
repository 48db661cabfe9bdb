"""Every path of a table, encoded and parsed; `placement` chooses the folders of data files. Pure.

Owns: the folder and file names of the format (shared with other clients, DO NOT CHANGE) and of lakebed's own objects
below ``lakebed/``. Paths are relative to the table's root.

Invariants:
- A branch keeps its snapshots, schemas and tags in ``branch/branch-<name>/``. Manifests, data files, index files and
  statistics of every branch are in the folders of main.
- Each ``parse_`` function returns None for a path of another kind; the branch of the path does not matter.
- An object below ``lakebed/iceberg/`` is *derived* from one manifest, list or index file, which its name states. It is
  needed as long as that file exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

MAIN_BRANCH: Final = "main"
_NUMBER: Final = r"(0|[1-9][0-9]*)"
_ROOT: Final = r"(?:branch/branch-[^/]+/)?"
_SNAPSHOT: Final = re.compile(rf"{_ROOT}snapshot/snapshot-{_NUMBER}")
_SCHEMA: Final = re.compile(rf"{_ROOT}schema/schema-{_NUMBER}")
_CHANGELOG: Final = re.compile(rf"{_ROOT}changelog/changelog-{_NUMBER}")
_TAG: Final = re.compile(rf"{_ROOT}tag/tag-([^/]+)")
_CONSUMER: Final = re.compile(rf"{_ROOT}consumer/consumer-([^/]+)")
_BRANCH: Final = re.compile(r"branch/branch-([^/]+)(?:/.*)?", re.DOTALL)
_DERIVED: Final = re.compile(r"lakebed/iceberg/(?:clients/)?[^/]+/(manifest|index)~([^/]+)~(?:metadata/)?[^/~]+")
_BUCKET: Final = re.compile(r"(?:(.*)/)?bucket-(-?[0-9]+|postpone)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one branch of a table; ``branch=None`` is main."""

    branch: str | None = None

    manifest_folder: ClassVar = "manifest"
    """Manifests, manifest lists and index manifests of every branch."""
    index_folder: ClassVar = "index"
    """Index files of every branch."""
    statistics_folder: ClassVar = "statistics"
    branch_folder: ClassVar = "branch"
    """Parent of all branches."""
    iceberg_folder: ClassVar = "lakebed/iceberg"
    """Objects that Iceberg clients read (lakebed's own)."""
    client_folder: ClassVar = "lakebed/iceberg/clients"
    """The location that Iceberg clients see, with metadata. A client may delete all else that is in a location."""

    @property
    def root(self) -> str:
        """``""`` for main, ``branch/branch-<name>/`` for a branch."""
        return "" if self.branch in (None, MAIN_BRANCH) else f"branch/branch-{self.branch}/"

    @property
    def snapshot_folder(self) -> str:
        """Where ``snapshot-<id>`` objects and the hints live."""
        return self.root + "snapshot"

    @property
    def schema_folder(self) -> str:
        """Where ``schema-<id>`` objects live."""
        return self.root + "schema"

    @property
    def tag_folder(self) -> str:
        """Where ``tag-<name>`` objects live."""
        return self.root + "tag"

    @property
    def changelog_folder(self) -> str:
        """Where ``changelog-<id>`` objects live (changelogs that outlive their snapshot)."""
        return self.root + "changelog"

    @property
    def consumer_folder(self) -> str:
        """Where ``consumer-<id>`` objects live."""
        return self.root + "consumer"

    @property
    def latest_hint(self) -> str:
        """A hint: the newest snapshot id as text. Never trusted alone."""
        return self.snapshot_folder + "/LATEST"

    @property
    def earliest_hint(self) -> str:
        """A hint: the oldest snapshot id as text. Never trusted alone."""
        return self.snapshot_folder + "/EARLIEST"

    @property
    def boundary_folder(self) -> str:
        """Markers of snapshot ids that are never used again (lakebed's own)."""
        return self.root + "lakebed/boundary"

    @property
    def reclaim_folder(self) -> str:
        """Unfinished deletions (lakebed's own)."""
        return self.root + "lakebed/reclaim"

    @property
    def tag_index(self) -> str:
        """A hint: tag names with their snapshot ids (lakebed's own). Never trusted without a listing."""
        return self.root + "lakebed/tag-index"

    def snapshot(self, snapshot_id: int) -> str:
        """Path of a snapshot."""
        return f"{self.snapshot_folder}/snapshot-{snapshot_id}"

    def schema(self, schema_id: int) -> str:
        """Path of a schema."""
        return f"{self.schema_folder}/schema-{schema_id}"

    def tag(self, name: str) -> str:
        """Path of a tag."""
        return f"{self.tag_folder}/tag-{name}"

    def changelog(self, snapshot_id: int) -> str:
        """Path of the changelog that outlived its snapshot."""
        return f"{self.changelog_folder}/changelog-{snapshot_id}"

    def consumer(self, name: str) -> str:
        """Path of a consumer's progress."""
        return f"{self.consumer_folder}/consumer-{name}"

    def manifest(self, name: str) -> str:
        """Path of a manifest, manifest list or index manifest."""
        return f"{self.manifest_folder}/{name}"

    def index(self, name: str) -> str:
        """Path of an index file."""
        return f"{self.index_folder}/{name}"

    def statistics(self, name: str) -> str:
        """Path of a statistics file."""
        return f"{self.statistics_folder}/{name}"


def parse_snapshot(path: str) -> int | None:
    """Id of a snapshot's path, in any branch."""
    return _number(_SNAPSHOT, path)


def parse_schema(path: str) -> int | None:
    """Id of a schema's path, in any branch."""
    return _number(_SCHEMA, path)


def parse_changelog(path: str) -> int | None:
    """Id of a changelog's path, in any branch."""
    return _number(_CHANGELOG, path)


def parse_tag(path: str) -> str | None:
    """Name of a tag's path, in any branch."""
    return _text(_TAG, path)


def parse_consumer(path: str) -> str | None:
    """Name of a consumer's path, in any branch."""
    return _text(_CONSUMER, path)


def parse_branch(path: str) -> str | None:
    """Name of the branch whose folder is the path or contains it."""
    return _text(_BRANCH, path)


def branch_of(path: str) -> str:
    """The branch a path belongs to, `MAIN_BRANCH` outside every branch folder."""
    return parse_branch(path) or MAIN_BRANCH


def derived_path(place: str, source: str, name: str) -> str:
    """Path of an object for Iceberg clients that is derived from another one.

    Args:
        place: folder of all objects of the same kind and table URL.
        source: path of a manifest, list or index file.
        name: without ``/`` and ``~``; distinguishes what is derived from the same source.
    """
    folder, _, source_name = source.rpartition("/")
    return f"{Layout.iceberg_folder}/{place}/{folder}~{source_name}~{name}"


def parse_derived(path: str) -> str | None:
    """Path of the manifest, list or index file that an object for Iceberg clients is derived from."""
    match = _DERIVED.fullmatch(path)
    return None if match is None else f"{match[1]}/{match[2]}"


def is_left_by_client(path: str) -> bool:
    """Whether an Iceberg client wrote a file into the location that it sees. No client can commit it."""
    return path.startswith(f"{Layout.client_folder}/") and parse_derived(path) is None


def parse_bucket_folder(folder: str) -> tuple[str, int] | None:
    """``(partition folder, bucket)`` of a bucket's folder; the partition folder is ``""`` without partitions."""
    match = _BUCKET.fullmatch(folder)
    if match is None:
        return None
    return match[1] or "", -2 if match[2] == "postpone" else int(match[2])


def _number(pattern: re.Pattern[str], path: str) -> int | None:
    text = _text(pattern, path)
    return None if text is None else int(text)


def _text(pattern: re.Pattern[str], path: str) -> str | None:
    match = pattern.fullmatch(path)
    return None if match is None else match[1]
