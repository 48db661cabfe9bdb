"""Explanations why an object or a version of a database exists: what needs it, or when it may be deleted. Reads only.

Owns: `why` and `why_version`. The answers follow the collector's rules (`lakebed.kv.reclaim`): the newest version and
those that live checkpoints pin need files and a range of the log; fences, markers and the lease stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakebed.kv.checkpoint import describe_checkpoint, live_checkpoints
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import LEASE_PATH, is_own, parse_boundary, parse_manifest, parse_sst, parse_wal
from lakebed.kv.locations import file_ids
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Checkpoint, Manifest
from lakebed.kv.versions import find_version, load_several, pin_of
from lakebed.kv.wal_record import FENCE_BYTES
from lakebed.objects.path import check_path
from lakebed.objects.reserve import RESERVE_PATH
from lakebed.reclaim.model import Explanation, Pin

_SHOWN_MAX = 4


def why(location: DatabaseLocation, path: str, *, store: str) -> Explanation:
    """Explain what needs an object of the database, or when it may be deleted.

    Args:
        path: relative to the database's folder.

    Raises:
        NotFound: there is no database; or there is no such object, and nothing needs it.
        InvalidRequest: the path is not valid.
        Corruption: a pinned version is unreadable, so what it needs is not known.

    Cost: 1 LIST + 1 GET, 1 HEAD, and for a sorted file or log object 1 GET for each pinned manifest.
    """
    check_path(path)
    log = ManifestLog(location)
    newest = log.latest()
    live = live_checkpoints(newest, location.environment.clock.now_ms())
    manifests = load_several(location, log, [checkpoint.manifest_id for checkpoint in live])
    question = _Question(location, path, newest, live, manifests, store)
    file_id, wal_id, manifest_id = parse_sst(path), parse_wal(path), parse_manifest(path)
    if file_id is not None:
        return question.file(file_id)
    if wal_id is not None:
        return question.log(wal_id)
    if manifest_id is not None:
        return question.manifest(manifest_id)
    location.store.head(path)
    if parse_boundary(path) is not None:
        return question.explain_kept("it is a mark of which versions' numbers were used, and stays")
    if path == LEASE_PATH:
        return question.explain_kept("it says who writes; only its owner changes it, and it stays")
    if path == RESERVE_PATH:
        return question.explain_kept("it is disk space held back for collections: one on a full disk gives it up")
    assert not is_own(path)
    return Explanation(path, (), f"{path} is not part of the database {location.url}: no collection touches it.")


def why_version(location: DatabaseLocation, version: str, *, store: str) -> Explanation:
    """Explain what keeps a version of the database, and what would free it.

    Args:
        version: a version's number, or a live checkpoint by name or id.

    Returns the version's number as the path. `Pin.expires_ms` is the end of a checkpoint; None: no end by itself.

    Raises:
        NotFound: there is no database; kind ``version_not_found``.
        Corruption: a pinned version is damaged.
    Cost: 1 LIST + 1 GET, and 1 GET a pinned manifest.
    """
    log = ManifestLog(location)
    newest = log.latest()
    live = live_checkpoints(newest, location.environment.clock.now_ms())
    version_manifest = find_version(location, newest, version)
    wanted_id = version_manifest if isinstance(version_manifest, int) else version_manifest.manifest_id
    manifests = load_several(location, log, sorted({wanted_id, *(checkpoint.manifest_id for checkpoint in live)}))
    number = _number_of(manifests, wanted_id)
    question = _Question(location, str(number), newest, live, manifests, store)
    needing = [checkpoint for checkpoint in live if _number_of(manifests, checkpoint.manifest_id) == number]
    is_current = newest.destroyed_at_ms is None and number == newest.content_since
    if not is_current and not needing:
        sentence = f"No checkpoint pins version {number}, though it can be read and pinned until a collection takes it."
        return Explanation(str(number), (), sentence)
    sentences = [f"Version {number} is the newest: it stays until another follows it."] if is_current else []
    if needing:
        need_text = question.explain_need(False, needing).sentence
        sentences.append(f"Version {need_text} A collection may take it once no checkpoint pins it.")
    return replace(question.explain_need(is_current, needing), sentence=" ".join(sentences))


def _number_of(manifests: Mapping[int, Manifest | None], manifest_id: int) -> int:
    manifest = manifests[manifest_id]
    return manifest_id if manifest is None else manifest.content_since


@dataclass(frozen=True, slots=True)
class _Question:
    """One object, and everything that may need it."""

    location: DatabaseLocation
    path: str
    newest: Manifest
    live: tuple[Checkpoint, ...]
    pinned: dict[int, Manifest | None]
    store: str

    def explain_kept(self, because: str) -> Explanation:
        """Explain an object that is kept independently of the versions."""
        return Explanation(self.path, (), f"{self.path} is kept: {because}.")

    def file(self, file_id: str) -> Explanation:
        """Explain a sorted file."""
        newest = self.newest
        is_current = newest.destroyed_at_ms is None and file_id in file_ids(newest)
        needing = [checkpoint for checkpoint in self.live if self._names(checkpoint, file_id)]
        if is_current or needing:
            return self.explain_need(is_current, needing)
        self.location.store.head(self.path)
        first_unpublished = min((job.start_id for job in newest.jobs), default=None)
        if file_id > newest.newest_l0_id:
            return self._free("its writer may publish it yet; if not, it goes when a newer file was published")
        if first_unpublished is not None and file_id >= first_unpublished:
            return self._free("a compaction or load that is under way may publish it; it goes when that has ended")
        return self._free("neither the newest version nor a pinned one names it")

    def log(self, wal_id: int) -> Explanation:
        """Explain a log object."""
        is_current = self.newest.destroyed_at_ms is None and wal_id > self.newest.replay_after_wal_id
        needing = []
        for checkpoint in self.live:
            pinned_manifest = self.pinned[checkpoint.manifest_id]
            if (
                pinned_manifest is not None
                and pinned_manifest.replay_after_wal_id < wal_id <= pinned_manifest.wal_id_last_seen
            ):
                needing.append(checkpoint)
        if is_current or needing:
            return self.explain_need(is_current, needing)
        if self.location.store.head(self.path).size_bytes == FENCE_BYTES:
            return self.explain_kept("it is a fence, which is never deleted: it keeps an older writer out")
        return self._free(f"its rows are in files since version {self.newest.manifest_id} at the latest")

    def manifest(self, manifest_id: int) -> Explanation:
        """Explain a manifest."""
        is_current = manifest_id == self.newest.manifest_id
        needing = [checkpoint for checkpoint in self.live if checkpoint.manifest_id == manifest_id]
        if is_current or needing:
            return self.explain_need(is_current, needing)
        self.location.store.head(self.path)
        if manifest_id >= self.newest.readable_since:
            return self._free("no checkpoint pins it, though it can be read and pinned until then")
        return self._free("no checkpoint pins it")

    def _names(self, checkpoint: Checkpoint, file_id: str) -> bool:
        manifest = self.pinned[checkpoint.manifest_id]
        return manifest is not None and file_id in file_ids(manifest)

    def explain_need(self, is_current: bool, needing: list[Checkpoint]) -> Explanation:
        """Explain an object that the newest version or checkpoints need."""
        pins = [pin_of(checkpoint, self.pinned[checkpoint.manifest_id], store=self.store) for checkpoint in needing]
        needers = [f"checkpoint {describe_checkpoint(checkpoint)}" for checkpoint in needing[:_SHOWN_MAX]]
        if len(needing) > _SHOWN_MAX:
            needers.append(f"{len(needing) - _SHOWN_MAX} more")
        if is_current:
            newest = self.newest
            version = str(newest.content_since)
            pins.insert(0, Pin(self.store, "version", version, version, "database", newest.created_at_ms, None))
            needers.insert(0, "the newest version")
        return Explanation(self.path, tuple(pins), f"{self.path} is needed by {_join_words(needers)}.")

    def _free(self, because: str) -> Explanation:
        """Explain an object that nothing needs. It is not known what a missing version may need."""
        missing = [checkpoint for checkpoint in self.live if self.pinned[checkpoint.manifest_id] is None]
        if missing:
            pins = tuple(pin_of(checkpoint, None, store=self.store) for checkpoint in missing)
            return Explanation(
                self.path,
                pins,
                f"{self.path} may be needed by checkpoint {describe_checkpoint(missing[0])}, whose version is missing: "
                "what is older than it is kept.",
            )
        if self.newest.destroyed_at_ms is not None:
            because = "the database was destroyed"
        return Explanation(
            self.path, (), f"{self.path} is needed by nothing ({because}): a collection takes it once it is old enough."
        )


def _join_words(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
