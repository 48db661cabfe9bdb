"""What a compactor's publication makes of a manifest: once, and never over another one's work."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from lakebed.errors import Conflict, Fenced
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Manifest
from lakebed.kv.publisher import CompactorPublisher
from lakebed.lsm.model import Run
from lakebed.lsm.plan import CompactionTask
from worlds.errors import raises
from worlds.kv.manual_database import ManualDatabase


class Compaction:
    """A database with three files of level 0, of which the older two are to be merged, and its compactor."""

    def __init__(self, *, is_empty: bool) -> None:
        manual = ManualDatabase.new()
        for number in range(3):
            manual.write(number)
        self.location = manual.place()
        self.log = ManifestLog(self.location)
        self.publisher = CompactorPublisher(self.location, log=self.log)
        self.newest_file, *inputs = self.log.latest().l0
        self.task = CompactionTask(tuple(file.id for file in inputs), (), bottom=True)
        self.job = self.publisher.begin_compaction(self.task)
        self.run = None if is_empty else Run(self.job.next_file_id(), tuple(inputs[:1]))

    def publish(self) -> tuple[list[str], list[str]]:
        """Publish it; the ids of files of level 0 and of runs then."""
        file_set = self.publisher.publish_compaction(self.job, self.task, self.run)
        return [file.id for file in file_set.l0], [run.id for run in file_set.runs]

    def change(self, change: Callable[[Manifest], Manifest]) -> None:
        """What another process does to the manifest."""
        self.log.update(change)


@pytest.fixture(params=[False, True], ids=["a run", "nothing left"])
def compaction(request: pytest.FixtureRequest) -> Compaction:
    """One whose inputs become a run, and one of which nothing is left."""
    return Compaction(is_empty=request.param)


def test_it_is_published_once(compaction: Compaction) -> None:
    """The output takes the place of the inputs and the job goes; a second try finds it done, and writes nothing."""
    outputs = [] if compaction.run is None else [compaction.run.id]
    assert compaction.publish() == ([compaction.newest_file.id], outputs)
    after = compaction.log.latest()
    assert after.jobs == ()
    assert compaction.publish() == ([compaction.newest_file.id], outputs)
    assert compaction.log.latest() == after


def test_a_job_that_was_removed_publishes_nothing(compaction: Compaction) -> None:
    """Its files may be collected already, whether its inputs are there still or went with another one's work."""
    compaction.publisher.abandon(compaction.job)
    before = compaction.log.latest()
    with raises(Conflict, "job_gone"):
        compaction.publish()
    assert compaction.log.latest() == before
    if compaction.run is not None:
        compaction.change(lambda manifest: msgspec.structs.replace(manifest, l0=manifest.l0[:1]))
        with raises(Conflict, "job_gone"):
            compaction.publish()


def test_a_job_whose_inputs_are_gone_publishes_nothing(compaction: Compaction) -> None:
    """Another change, such as a restore, has taken them out."""
    compaction.change(lambda manifest: msgspec.structs.replace(manifest, l0=manifest.l0[:1]))
    before = compaction.log.latest()
    with raises(Conflict, "inputs_gone"):
        compaction.publish()
    assert compaction.log.latest() == before
    with raises(Conflict, "inputs_gone"):
        compaction.publisher.begin_compaction(compaction.task)


def test_a_newer_compactor_ends_an_older_one(compaction: Compaction) -> None:
    """The older one publishes nothing, takes no job out that is not its own, and the newer one's work stays."""
    other = CompactorPublisher(compaction.location, log=compaction.log)
    job = other.begin_compaction(compaction.task)
    assert (other.epoch, compaction.publisher.epoch) == (2, 1)
    before = compaction.log.latest()
    with raises(Fenced, "compactor_fenced", epoch=2, own_epoch=1):
        compaction.publish()
    compaction.publisher.abandon(compaction.job)
    assert compaction.log.latest() == before
    other.abandon(job)
    assert compaction.log.latest().jobs == ()
