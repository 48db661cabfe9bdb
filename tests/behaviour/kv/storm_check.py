"""What must be true after a storm (`storm.py`): checked on what the processes said, and on what lies there."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from lakebed.errors import LakebedError
from lakebed.fsck.check import check_url
from lakebed.kv import CollectorOptions
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import BOUNDARY_FOLDER, LEASE_PATH, parse_manifest, parse_wal
from lakebed.kv.wal_record import FENCE_BYTES
from lakebed.objects.probe import is_probe

Numbers = dict[str, int]


def check(storm: Any, counts: Counter[str]) -> dict[str, Any]:
    """Everything; a list of wrongs, and counts of what was met."""
    return _Check(storm, counts).run()


def epoch_of(stream: str) -> int:
    """The epoch of the writer whose stream it is."""
    return int(stream.split("-")[1])


class _Check:
    def __init__(self, storm: Any, counts: Counter[str]) -> None:
        self.storm = storm
        self.counts = counts
        self.wrongs: list[str] = []
        self.acknowledged: Numbers = storm.acknowledged()
        self.restores = [event for event in storm.heard("restored") if event["epoch"] is not None]

    def run(self) -> dict[str, Any]:
        storm = self.storm
        for event in storm.heard("trouble"):
            self.wrongs.append(f"{event['role']}: {event['text']}")
        for event in storm.heard("ended"):
            self.counts[f"ended {event['role']} {event['kind']}"] += 1
        if len(storm.heard("restoring")) != len(storm.heard("restored")):
            self.wrongs.append(f"a restore did not say how it ended: {storm.heard('ended')}")
        with DatabaseAdmin(DatabaseLocation.at(storm.main)).open(take_over=True) as db:
            final = storm.numbers_of(db.scan())
        self.check_streams("the database", final, self.restores[-1:], self.acknowledged)
        self.check_checkpoints()
        self.check_clones()
        self.check_sound()
        self.check_teardown()
        self.counts.update(
            streams=len(self.acknowledged),
            writes=sum(number + 1 for number in self.acknowledged.values()),
            restores=len(self.restores),
            checkpoints=len(storm.heard("checkpoint")),
            clones=len(storm.heard("clone")),
            reads=len(storm.heard("read")),
            collected=sum(item["count"] for item in storm.heard("collected")),
            commands=len(storm.heard("ran")),
        )
        return {"wrongs": self.wrongs, "counts": dict(sorted(self.counts.items()))}

    def check_streams(self, what: str, found: Numbers, restored: list[Any], acknowledged: Numbers) -> None:
        """What was acknowledged before is there, unless it was restored away: then what was restored is."""
        for stream, number in acknowledged.items():
            if not stream.startswith("main-"):
                continue
            seen = found.get(stream, -1)
            if restored and epoch_of(stream) < restored[0]["epoch"]:
                wanted = restored[0]["numbers"].get(stream, -1)
                if seen != wanted:
                    self.wrongs.append(f"{what}: stream {stream} is at {seen}, and was restored to {wanted}")
            elif seen < number or (acknowledged is self.acknowledged and seen > number + 1):
                self.wrongs.append(f"{what}: stream {stream} is at {seen}, and {number} was acknowledged")

    def restored_before(self, manifest_id: int) -> list[Any]:
        """The last restore below a version."""
        return [restore for restore in self.restores if restore["manifest_id"] <= manifest_id][-1:]

    def check_checkpoints(self) -> None:
        for item in [*self.storm.kept(), *self.storm.heard("present")]:
            restored = self.restored_before(item["manifest_id"])
            self.check_streams(f"checkpoint {item['id']}", item["numbers"], restored, item["acknowledged"])
            try:
                contents = self.storm.contents(self.storm.main, item["id"])
            except Exception as error:
                self.wrongs.append(f"checkpoint {item['id']}: {error!r}")
                continue
            if contents != item["numbers"]:
                self.wrongs.append(f"checkpoint {item['id']} held {item['numbers']} and holds {contents}")

    def check_clones(self) -> None:
        for clone in self.storm.living_clones():
            mine = f"{Path(clone['url']).name}-"
            try:
                contents = self.storm.contents(clone["url"])
            except Exception as error:
                self.wrongs.append(f"clone {clone['url']}: {error!r}")
                continue
            shared = {stream: number for stream, number in contents.items() if not stream.startswith(mine)}
            if shared != clone["numbers"]:
                self.wrongs.append(f"clone {clone['url']} began with {clone['numbers']} and holds {shared}")
            for stream, number in self.acknowledged.items():
                if stream.startswith(mine) and not number <= contents.get(stream, -1) <= number + 1:
                    self.wrongs.append(
                        f"clone {clone['url']}: stream {stream} is at {contents.get(stream)}, not at {number}"
                    )

    # What lies there

    def collect(self, url: str) -> None:
        everything = CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0))
        for _ in range(5):  # what ends by time may end in between
            report = DatabaseAdmin(DatabaseLocation.at(url)).collect(everything)
            self.wrongs += [
                f"collecting {url}: {warning}" for warning in report.warnings if "not finished" not in warning
            ]
            if not report.deleted_count:
                return

    def check_sound(self) -> None:
        """No error; and after a collection no unreferenced file."""
        for url in [self.storm.main, *(clone["url"] for clone in self.storm.living_clones())]:
            database = DatabaseAdmin(DatabaseLocation.at(url))
            for checkpoint in database.list_checkpoints():
                if checkpoint.owner.kind == "reader":
                    database.delete_checkpoint(checkpoint.id, force=True)
            database.open(take_over=True).close()
            self.collect(url)
            for finding in check_url(url, deep=True).findings:
                if finding.severity == "error" or finding.kind == "orphan":
                    self.wrongs.append(f"fsck of {url}: {finding.kind} {finding.path} {finding.sentence}")
            newest = database.show_manifest()
            pinned = {item.manifest_id for item in newest.checkpoints}
            present = {parse_manifest(meta.path) for meta in database.location.store.list("manifest")}
            if present - pinned - {newest.manifest_id}:
                self.wrongs.append(f"{url} keeps the manifests {sorted(present - pinned)} for nobody")

    def check_teardown(self) -> None:
        """When all is destroyed, tombstones are left and nothing else."""
        urls = [event["url"] for event in self.storm.heard("begun")]
        for url in urls:
            database = DatabaseAdmin(DatabaseLocation.at(url))
            try:
                database.destroy(soft=True)
            except LakebedError as error:
                if error.kind != "database_not_found":
                    raise
        for _ in range(len(urls) + 1):  # a clone's clone lets its parent go
            for url in urls:
                database = DatabaseAdmin(DatabaseLocation.at(url))
                if database.location.store.list_with_delimiter("manifest").objects:
                    self.force(database)
                    self.collect(url)
        main = DatabaseAdmin(DatabaseLocation.at(self.storm.main))
        owners = [
            str(checkpoint.owner)
            for checkpoint in main.list_checkpoints()
            if checkpoint.owner.kind == "clone" and checkpoint.expires_at_ms is None
        ]
        if owners:
            self.wrongs.append(f"pins of clones that were destroyed: {owners}")
        self.force(main)
        main.destroy(soft=False)
        for url in [self.storm.main, *urls]:
            left = [meta for meta in DatabaseLocation.at(url).store.list() if not self.is_tombstone(meta)]
            manifests = [meta for meta in left if parse_manifest(meta.path)]
            if len(manifests) > 1 or len(left) > len(manifests):
                self.wrongs.append(f"destroyed, {url} still has {[meta.path for meta in left]}")

    def force(self, database: DatabaseAdmin) -> None:
        """Remove every checkpoint of users and of clones that were never finished."""
        for checkpoint in database.list_checkpoints():
            if checkpoint.owner.kind == "clone" and checkpoint.expires_at_ms is None:
                continue
            database.delete_checkpoint(checkpoint.id, force=True)

    @staticmethod
    def is_tombstone(meta: Any) -> bool:
        """Whether it stays when a database is destroyed, the newest manifest not counted.

        A probe of a process that was killed is like one of a process that runs, until it is an hour old.
        """
        is_fence = parse_wal(meta.path) is not None and meta.size_bytes == FENCE_BYTES
        return is_fence or meta.path == LEASE_PATH or meta.path.startswith(BOUNDARY_FOLDER) or is_probe(meta.path)
