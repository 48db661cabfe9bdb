"""A storm of real processes on one store: ``python storm.py FOLDER URL SECONDS SEED`` prints what it met as JSON.

Owns: the roles (writers that take over from each other, readers with long scans, the ``lakebed kv`` commands, cloners,
a restorer, a collector with no minimum age), who is killed, stopped and continued when, and what must be true at the
end. Each process writes what it knows to a file of its own, so the knowledge of a killed one is complete.

Each writer thread has a *stream* of writes. Its n-th write is one batch that sets the stream's number to n, adds row n
and deletes row n - `ROWS_KEPT`. So the rows of a stream in any version follow from one number; `numbers_of` raises
when they are not. A version's contents are a dictionary from stream to number.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from storm_check import check

import lakebed.kv
import lakebed.kv.collect
import lakebed.kv.restore
from lakebed.cli.main import run as run_command
from lakebed.clock import SystemClock
from lakebed.errors import Conflict, Corruption, Fenced, InternalError, LakebedError, NotFound
from lakebed.kv import Database, DatabaseOptions, ReaderOptions, WriteBatch
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.database_location import DatabaseLocation
from worlds.waiting import pause

ROWS_KEPT = 20
VALUE_BYTES = 300
STREAMS = 2
ROLES = ("writer", "writer", "reader", "checkpointer", "cloner", "commander", "collector", "restorer")
SPARED = ("restorer",)
"""A killed restorer could not say whether it restored."""

CLOCK = SystemClock()
SMALL = DatabaseOptions(
    l0_sst_bytes=40_000,
    unflushed_bytes_max=200_000,
    l0_count_max=8,
    l0_compaction_count=3,
    run_compaction_count=2,
    run_file_bytes=60_000,
    block_bytes=2_000,
    manifest_poll_interval_ms=200,
    lease_lifetime_ms=1_000,
)
POLLING = ReaderOptions(manifest_poll_interval=timedelta(milliseconds=300), checkpoint_lifetime=timedelta(seconds=2))

LONGER_MAX = 6

Numbers = dict[str, int]


class Torn(AssertionError):
    """A version that never was."""


def row_key(stream: str, number: int) -> bytes:
    """Key of a stream's row."""
    return f"row/{stream}/{number:06d}".encode()


def row_value(stream: str, number: int) -> bytes:
    """Its value."""
    return (f"{stream} {number} ".encode() * 40)[:VALUE_BYTES]


def batch_of(stream: str, number: int) -> WriteBatch:
    """The n-th write of a stream."""
    batch = WriteBatch()
    batch.put(f"n/{stream}".encode(), str(number).encode())
    batch.put(row_key(stream, number), row_value(stream, number))
    if number >= ROWS_KEPT:
        batch.delete(row_key(stream, number - ROWS_KEPT))
    return batch


def numbers_of(rows: Iterable[tuple[bytes, bytes]]) -> Numbers:
    """Each stream's number, after a look at every row. Raises `Torn`."""
    result = dict(rows)
    numbers = {key[2:].decode(): int(value) for key, value in result.items() if key.startswith(b"n/")}
    expected = {f"n/{stream}".encode(): str(number).encode() for stream, number in numbers.items()}
    for stream, number in numbers.items():
        for row in range(max(0, number - ROWS_KEPT + 1), number + 1):
            expected[row_key(stream, row)] = row_value(stream, row)
    if result != expected:
        wrong = sorted(key for key in result.keys() | expected.keys() if result.get(key) != expected.get(key))
        raise Torn(f"{len(wrong)} rows are wrong, such as {wrong[:4]}: streams {numbers}")
    return numbers


def complete_lines(path: Path) -> list[str]:
    """The lines of a file but for one that its writer's death cut: a kill can end a write between two pages."""
    return path.read_text().rpartition("\n")[0].splitlines()


class Storm:
    """The folder, and what is said in it."""

    numbers_of = staticmethod(numbers_of)

    def __init__(self, folder: Path, url: str) -> None:
        self.said = folder / "said"
        self.url = url
        self.main = f"{url}/main"

    def say(self, name: str, **facts: Any) -> None:
        """Put a line where no death of this process can take it away."""
        descriptor = os.open(self.said / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, json.dumps(facts).encode() + b"\n")
        finally:
            os.close(descriptor)

    def heard(self, kind: str) -> list[Any]:
        """All lines of a kind, of all processes."""
        return [json.loads(line) for path in sorted(self.said.glob(f"{kind}.*")) for line in complete_lines(path)]

    def acknowledged(self) -> Numbers:
        """The last write of each stream that was acknowledged by now."""
        said = {path.name.removeprefix("stream."): complete_lines(path) for path in self.said.glob("stream.*")}
        return {stream: int(numbers[-1]) for stream, numbers in said.items() if numbers}

    def has_everything(self) -> bool:
        """Whether each role has done its work at least once."""
        kinds = ("read", "checkpoint", "clone", "ran")
        is_done = bool(self.acknowledged()) and all(self.heard(kind) for kind in kinds)
        return is_done and any(event["count"] for event in self.heard("collected"))

    def was_restored(self, after: int, through: int) -> bool:
        """Whether a version in ``(after, through]`` may be a restored one."""
        restored = self.heard("restored")
        is_under_way = len(restored) < len(self.heard("restoring"))
        return is_under_way or any(after < (item.get("manifest_id") or 0) <= through for item in restored)

    # ---- roles

    def write_stream(self, db: Database, stream: str, rng: random.Random, count: int) -> None:
        """Write a stream until fenced, or so often."""
        with open(self.said / f"stream.{stream}", "ab", buffering=0) as said:
            for number in range(count):
                batch, how = batch_of(stream, number), rng.random()
                if how < 0.15:
                    with db.transaction() as transaction:
                        for key, value in zip(batch.keys, batch.values, strict=True):
                            transaction.delete(key) if value is None else transaction.put(key, value)
                elif how < 0.3:
                    db.write(batch, await_durable=False)
                    db.flush()
                else:
                    db.write(batch)
                said.write(b"%d\n" % number)

    def writer(self, rng: random.Random) -> None:
        """Own the database, and write in several threads until another writer takes it over."""
        db = lakebed.kv.open(self.main, options=SMALL, take_over=rng.random() < 0.3)
        endings: list[BaseException] = []

        def stream(name: str, stream_rng: random.Random) -> None:
            try:
                self.write_stream(db, name, stream_rng, 1_000_000)
            except BaseException as error:
                endings.append(error)

        threads = [
            threading.Thread(target=stream, args=(f"main-{db.epoch:05d}-{number}", random.Random(rng.random())))
            for number in range(STREAMS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with contextlib.suppress(Fenced):
            db.close()
        raise endings[0]

    def reader(self, rng: random.Random) -> None:
        """Read the latest again and again, slowly, and never see less than before."""
        with lakebed.kv.open_reader(self.main, options=POLLING) as reader:
            before, version_before = Numbers(), 0
            for _ in range(8):
                version, rows = reader.manifest.manifest_id, reader.scan(reverse=rng.random() < 0.3)
                is_steady = version == reader.manifest.manifest_id
                seen = numbers_of(self._slowly(rows, rng))
                went_back = is_steady and any(seen.get(stream, -1) < number for stream, number in before.items())
                if went_back and not self.was_restored(version_before, version):
                    raise Torn(f"a reader saw {before} at {version_before} and then {seen} at {version}")
                before, version_before = (seen, version) if is_steady else ({}, 0)
                self.say(f"read.{os.getpid()}", streams=len(seen))

    def _slowly(self, rows: Iterator[tuple[bytes, bytes]], rng: random.Random) -> Iterator[tuple[bytes, bytes]]:
        for row in rows:
            if rng.random() < 0.02:
                pause(rng.random() * 0.05)
            yield row

    def command(self, *words: str) -> tuple[int, Any]:
        """Run ``lakebed kv`` as a user would; its exit code, and its JSON or its error."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command(["kv", *words, "--json"])
        text = (out if code == 0 else err).buffer.getvalue().decode()  # type: ignore[attr-defined]
        if code in (1, 5) or '"kind":"usage"' in text:  # the last one: no such command, and nothing was done
            raise InternalError(f"lakebed kv {words} ended with {code}: {text}")
        self.say(f"ran.{os.getpid()}", words=words, code=code, text=text[-300:] if code else "")
        try:
            return code, json.loads(text)
        except ValueError:
            return code, text

    def contents(self, url: str, checkpoint: str | None = None) -> Numbers:
        """What a version holds."""
        with lakebed.kv.open_reader(url, checkpoint, options=POLLING) as reader:
            return numbers_of(reader.scan())

    def checkpointer(self, rng: random.Random) -> None:
        """Make checkpoints, remember what they hold, read them again, let some go."""
        while True:
            acknowledged = self.acknowledged()
            code, made = self.command("--path", self.main, "tag")
            if code == 0:
                numbers = self.contents(self.main, made["id"])
                self.say(
                    f"checkpoint.{os.getpid()}", id=made["id"], manifest_id=made["manifest_id"],
                    numbers=numbers, acknowledged=acknowledged,
                )  # fmt: skip
            kept = self.kept()
            if kept:
                choice = rng.choice(kept)
                if self.contents(self.main, choice["id"]) != choice["numbers"]:
                    raise Torn(f"the checkpoint {choice['id']} changed")
                if len(kept) > 6 and rng.random() < 0.8:
                    self.say(f"deleting.{os.getpid()}", id=choice["id"])
                    self.command("--path", self.main, "drop-tag", choice["id"])
            pause(rng.random() * 0.4)

    def kept(self) -> list[Any]:
        """Checkpoints whose deletion has not begun."""
        gone = {event["id"] for event in self.heard("deleting")}
        return [event for event in self.heard("checkpoint") if event["id"] not in gone]

    def cloner(self, rng: random.Random) -> None:
        """Clone the latest, checkpoints and clones; write to clones; destroy some."""
        for count in range(1_000):
            kept, clones = self.kept(), self.living_clones()
            parent, checkpoint, expected = self.main, None, None
            if clones and rng.random() < 0.4:
                parent = rng.choice(clones)["url"]
            elif kept and rng.random() < 0.6:
                choice = rng.choice(kept)
                checkpoint, expected = choice["id"], choice["numbers"]
            url = f"{self.url}/clones/c{os.getpid()}x{count}"
            self.say(f"begun.{os.getpid()}", url=url)
            words = ["--checkpoint", checkpoint] if checkpoint else []
            code, _ = self.command("--path", parent, "branch", url, *words)
            if code == 0:
                numbers = self.contents(url)
                if expected is not None and numbers != expected:
                    raise Torn(f"the clone {url} of {checkpoint} holds {numbers}, not {expected}")
                self.say(f"clone.{os.getpid()}", url=url, parent=parent, checkpoint=checkpoint, numbers=numbers)
                if rng.random() < 0.5:
                    with lakebed.kv.open(url, options=SMALL, create=False) as db:
                        stream = f"{Path(url).name}-{db.epoch:05d}-0"
                        self.write_stream(db, stream, rng, rng.randrange(1, 60))
            if len(clones) > 4:
                doomed = rng.choice(clones)["url"]
                self.say(f"destroying.{os.getpid()}", url=doomed)
                self.command("--path", doomed, "drop", rng.choice(("--hard", "--soft")), "--yes")
            pause(rng.random() * 0.3)

    def living_clones(self) -> list[Any]:
        """Finished clones whose destruction has not begun."""
        gone = {event["url"] for event in self.heard("destroying")}
        return [event for event in self.heard("clone") if event["url"] not in gone]

    def commander(self, rng: random.Random) -> None:
        """Every other command that a user runs at a terminal."""
        choices = (
            ("tags",), ("manifests",), ("stats",), ("scan", "--count"), ("manifest",),
            ("compact",), ("compact", "--full"), ("tag", "-l", "1s"),
        )  # fmt: skip
        while True:
            self.command("--path", self.main, *rng.choice(choices))
            pause(rng.random() * 0.2)

    def collector(self, rng: random.Random) -> None:
        """Collect everything, all the time."""
        options = lakebed.kv.CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0))
        while True:
            urls = [self.main, *(event["url"] for event in self.heard("clone"))]
            for url in [self.main, *rng.sample(urls, min(3, len(urls)))]:
                try:
                    report = lakebed.kv.collect.collect_garbage(DatabaseLocation.at(url, create=False), options=options)
                except NotFound as error:
                    if error.kind != "database_not_found":
                        raise
                else:
                    self.say(f"collected.{os.getpid()}", count=report.deleted_count)
            pause(rng.random() * 0.1)

    def restorer(self, rng: random.Random) -> None:
        """Bring checkpoints back; what was there stays under another one."""
        while not (self.said / "calm").exists():
            pause(0.5 + rng.random())
            kept = self.kept()
            if not kept or rng.random() < 0.4:
                continue
            choice = rng.choice(kept)
            self.say("restoring.all", id=choice["id"])
            place = DatabaseLocation.at(self.main)
            acknowledged = self.acknowledged()
            try:
                restored = lakebed.kv.restore.restore(
                    place, choice["id"], lifetime=timedelta(minutes=10), take_over=True
                )
            except LakebedError as error:
                self.say("restored.all", epoch=None, error=repr(error))
                continue
            present = DatabaseAdmin(place).show_manifest(restored.present.manifest_id)
            self.say(
                "restored.all",
                epoch=present.writer_epoch,
                manifest_id=restored.manifest.manifest_id,
                numbers=choice["numbers"],
            )
            contents = self.contents(self.main, restored.present.id)
            self.say("present.all", id=restored.present.id, manifest_id=restored.present.manifest_id, numbers=contents,
                     acknowledged=acknowledged, epoch=present.writer_epoch)  # fmt: skip

    def play(self, role: str, seed: int) -> None:
        """Be a role until it ends, and say how it ended if that is not one of the usual ways."""
        try:
            getattr(self, role)(random.Random(seed))
        except (Fenced, Conflict) as error:
            self.say(f"ended.{os.getpid()}", role=role, kind=error.kind, text=str(error))
        except LakebedError as error:
            usual = not isinstance(error, Corruption | InternalError) and error.kind != "not_found"
            self.say(f"{'ended' if usual else 'trouble'}.{os.getpid()}", role=role, kind=error.kind,
                     text=f"{error}\n{'' if usual else traceback.format_exc()}")  # fmt: skip
        except BaseException:
            self.say(f"trouble.{os.getpid()}", role=role, kind="", text=traceback.format_exc())


# ---- the faults


def fork(role: Callable[[], None]) -> int:
    """A process; this one has opened nothing and started no thread."""
    pid = os.fork()
    if pid == 0:
        try:
            role()
        finally:
            os._exit(0)
    return pid


def blow(storm: Storm, seconds: float, rng: random.Random) -> Counter[str]:
    """Let all roles run at once; kill, stop and continue them; start anew what ended.

    On a busy machine it goes on, up to `LONGER_MAX` times as long, until each role has done something.
    """
    running: dict[int, str] = {}
    stopped: dict[int, float] = {}
    counts: Counter[str] = Counter()

    def start(role: str) -> None:
        seed = rng.randrange(1 << 30)
        running[fork(lambda: storm.play(role, seed))] = role

    for role in ROLES:
        start(role)
    begun = CLOCK.monotonic_s()
    while (passed := CLOCK.monotonic_s() - begun) < seconds or (
        passed < LONGER_MAX * seconds and not storm.has_everything()
    ):
        pause(0.02 + rng.random() * 0.1)
        for pid in list(running):
            if os.waitpid(pid, os.WNOHANG)[0]:
                role = running.pop(pid)
                stopped.pop(pid, None)
                start(role)
        for pid, until in list(stopped.items()):
            if CLOCK.monotonic_s() >= until:
                os.kill(pid, signal.SIGCONT)
                del stopped[pid]
        awake = [item for item in running if item not in stopped]
        if not awake:
            continue
        draw, pid = rng.random(), rng.choice(awake)
        if draw < 0.12 and running[pid] not in SPARED:
            os.kill(pid, signal.SIGKILL)
            counts[f"killed {running[pid]}"] += 1
        elif draw < 0.24:
            os.kill(pid, signal.SIGSTOP)
            stopped[pid] = CLOCK.monotonic_s() + rng.random() * 3
            counts[f"stopped {running[pid]}"] += 1
    for pid, role in running.items():
        os.kill(pid, signal.SIGCONT)
        if role not in SPARED:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    (storm.said / "calm").touch()
    for pid, role in running.items():
        if role in SPARED:
            os.waitpid(pid, 0)
    return counts


def main(folder: Path, url: str, seconds: float, seed: int) -> None:
    """Run the storm, then check; print what was wrong, and counts, as JSON."""
    storm = Storm(folder, url)
    storm.said.mkdir(parents=True)
    counts = blow(storm, seconds, random.Random(seed))
    print(json.dumps(check(storm, counts), indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
