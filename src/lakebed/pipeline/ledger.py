"""The run ledger: which steps of a run are done, kept in the lake as small create-only objects.

    <lake>/_lakebed/runs/<run id>/run.json                       what runs (`RunRecord`), written first
                                  steps/<6 digits>.json          one finished step (`StepRecord`)
                                  carried/<6 digits>.json        finished steps of earlier runs that one call took over
                                  attempts/<6 digits>-start.json one call of run, when it began
                                  attempts/<6 digits>-end.json   how that call ended; missing: it runs, or was killed

Owns: these names, and reading and writing the objects. DO NOT CHANGE: on disk. Invariants:
- No object is ever replaced or deleted.
- A step is recorded after its effects are durable. After a crash in between, the step runs again; its commit identity
  makes that harmless.
- A run id never belongs to another plan.
- A run that was complete once stays complete, whatever a concurrent call records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from lakebed.decoding import decode_json
from lakebed.errors import AlreadyExists, Conflict, Corruption, InvalidRequest, NotFound, UnsupportedFormat
from lakebed.objects.port import ObjectStore
from lakebed.pipeline.model import Plan, StepRecord
from lakebed.runtime import Environment, map_in_pool

FORMAT = 2
FORMATS_READ = (1, 2)
"""1: without ``carried/``. A version that reads 1 only would do the carried steps again, so it must refuse 2."""
RUNS_FOLDER = "_lakebed/runs"
_READERS = 16
_TRIES_MAX = 100
_SHOWN_RUNS_MAX = 10

RUNS_ELSEWHERE = "run_elsewhere"
"""Kind of the `Conflict` of a call that finds another one at the same steps."""
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What runs; the first object of a run."""

    format: int
    run_id: str
    pipeline: str
    file: str
    fingerprint: str
    """Fingerprint of the plan."""
    step_count: int
    variables: Mapping[str, str]
    started_ms: int
    """Unix time in milliseconds, UTC."""
    replay: tuple[str, ...] = ()
    """Steps (or patterns) that a person asked to run again when the run began."""

    @property
    def is_of_definition(self) -> bool:
        """Whether its id follows from its definition and variables, so that it takes over earlier runs."""
        return self.run_id.startswith(f"{self.pipeline}-{self.fingerprint[:12]}")


@dataclass(frozen=True, slots=True)
class Carried:
    """The records that one call of run took over."""

    records: tuple[StepRecord, ...]


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """The start of one call of run."""

    started_ms: int


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of one call of run."""

    ended_ms: int
    outcome: str
    """``complete`` or ``failed``."""
    step: str | None = None
    """The step that failed."""
    error_kind: str | None = None
    error: str | None = None
    """The error's sentence."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of a run, as `status` shows it."""

    run_id: str
    pipeline: str
    state: str
    """``complete``, ``failed``, or ``unfinished`` (it runs now, or was killed: run it again to continue)."""
    steps_total: int
    steps_done: int
    started_ms: int
    ended_ms: int | None
    attempts: int
    failed_step: str | None
    error: str | None
    rows_dropped: Mapping[str, int] | None = None
    """Bad rows that steps left out, by the step's name, when one run is asked for; None: the steps were not read."""


class Ledger:
    """The ledger of one run.

    Args:
        run_id: letters, digits, ``.``, ``_`` and ``-``, at most 128.
    """

    def __init__(self, store: ObjectStore, *, run_id: str, environment: Environment) -> None:
        if not _RUN_ID.fullmatch(run_id):
            raise InvalidRequest(
                f"'{run_id}' is not a valid run id: use letters, digits, '.', '_' and '-', at most 128.", run_id=run_id
            )
        self.run_id = run_id
        self._store = store
        self._folder = f"{RUNS_FOLDER}/{run_id}"
        self._environment = environment

    def begin(self, plan: Plan, *, replay: Sequence[str] = ()) -> int:
        """Write (or check) what runs, and the start of a call. Return the call's number, from 1.

        Raises `InvalidRequest`: the run id belongs to another plan.
        """
        record = RunRecord(
            format=FORMAT,
            run_id=self.run_id,
            pipeline=plan.pipeline,
            file=plan.file,
            fingerprint=plan.fingerprint,
            step_count=len(plan.steps),
            variables=dict(plan.variables),
            started_ms=self._environment.clock.now_ms(),
            replay=tuple(replay),
        )
        try:
            self._create("run.json", record)
        except AlreadyExists:
            self.check(plan)
        for _ in range(_TRIES_MAX):
            number = self.attempt_count() + 1
            try:
                self._create(f"attempts/{number:06d}-start.json", AttemptStart(self._environment.clock.now_ms()))
            except AlreadyExists:
                continue
            return number
        raise Conflict(
            f"Other processes began the run '{self.run_id}' {_TRIES_MAX} times meanwhile: stop them, then run it.",
            kind="run_contention",
            run_id=self.run_id,
        )

    def check(self, plan: Plan) -> None:
        """Raise `InvalidRequest` when the run belongs to another plan. Raises `NotFound` when there is no such run."""
        earlier = self.run()
        if earlier.fingerprint != plan.fingerprint:
            raise InvalidRequest(
                f"The run '{self.run_id}' was begun with another version of the pipeline '{earlier.pipeline}' or "
                "with other variables: give another run id to start a new run, or none to continue from what earlier "
                "runs finished.",
                kind="run_id_taken",
                run_id=self.run_id,
            )

    def carry(self, attempt: int, records: Sequence[StepRecord]) -> None:
        """Write the records of earlier runs that count for steps of this one: one object, all or none of them."""
        if records:
            self._create(f"carried/{attempt:06d}.json", Carried(tuple(records)))

    def end(self, attempt: int, end: AttemptEnd) -> None:
        """Write the end of a call."""
        self._create(f"attempts/{attempt:06d}-end.json", end)

    def record(self, record: StepRecord) -> None:
        """Write the record of a finished step.

        Raises `Conflict`: kind `RUNS_ELSEWHERE`, another process recorded the same step: two of them run this run.
        """
        try:
            self._create(f"steps/{record.ordinal:06d}.json", record)
        except AlreadyExists as error:
            raise Conflict(
                f"Another process is running the run '{self.run_id}' too and has just done step {record.ordinal} "
                f"('{record.name}'), so this call stops; nothing was done twice. Let the other one finish: a call "
                "after that continues the run, or finds it complete.",
                kind=RUNS_ELSEWHERE,
                run_id=self.run_id,
            ) from error

    def run(self) -> RunRecord:
        """Read what runs. Raises `NotFound` when there is no such run."""
        try:
            record = self._read("run.json", RunRecord)
        except NotFound as error:
            raise NotFound(
                f"There is no run '{self.run_id}' in {self._store.root_url}. {_there(run_ids(self._store))}",
                kind="run_not_found",
                run_id=self.run_id,
            ) from error
        if record.format not in FORMATS_READ:
            raise UnsupportedFormat(
                f"The run '{self.run_id}' was written in ledger format {record.format}; this lakebed reads up to "
                f"{FORMAT}.",
                path=f"{self._folder}/run.json",
            )
        return record

    def records(self) -> dict[int, StepRecord]:
        """Read the finished steps by ordinal, in order, with those taken over.

        Cost: 2 LIST + 1 GET a step, 16 at a time.
        """
        records = self.own_records()
        for record in self._read_carried(self._names("carried")):
            records.setdefault(record.ordinal, record)
        return dict(sorted(records.items()))

    def own_records(self) -> dict[int, StepRecord]:
        """Read the steps that this run finished itself, by ordinal, in order.

        Cost: 1 LIST + 1 GET a step, 16 at a time.
        """
        records = map_in_pool(
            self._environment.runtime,
            lambda name: self._read(f"steps/{name}", StepRecord),
            self._names("steps"),
            worker_count_max=_READERS,
        )
        return {record.ordinal: record for record in sorted(records, key=lambda record: record.ordinal)}

    def record_of(self, ordinal: int) -> StepRecord | None:
        """Read the record of a step that this run finished itself; None when there is none. Cost: 1 GET."""
        try:
            return self._read(f"steps/{ordinal:06d}.json", StepRecord)
        except NotFound:
            return None

    def _read_carried(self, names: Sequence[str]) -> list[StepRecord]:
        """Read the records that calls took over, the earlier call first."""
        return [record for name in sorted(names) for record in self._read(f"carried/{name}", Carried).records]

    def attempt_count(self) -> int:
        """Return the number of calls of run."""
        return sum(name.endswith("-start.json") for name in self._names("attempts"))

    def last_began_ms(self) -> int:
        """Return the start of the last call, Unix time in milliseconds, UTC. Cost: 1 LIST + 1 GET."""
        return self._read(f"attempts/{self.attempt_count():06d}-start.json", AttemptStart).started_ms

    def ends(self) -> dict[int, AttemptEnd]:
        """Read the ends of calls, by number; a call without one runs, or was killed. Cost: 1 LIST + 1 GET a call."""
        names = [name for name in self._names("attempts") if name.endswith("-end.json")]
        return {int(name.partition("-")[0]): self._read(f"attempts/{name}", AttemptEnd) for name in sorted(names)}

    def is_complete(self) -> bool:
        """Return whether a call ended with every step done. Cost: 1 LIST + 1 GET, and 1 GET a call after that one."""
        return self._find_complete(self._names("attempts")) is not None

    def _find_complete(self, attempts: Sequence[str]) -> AttemptEnd | None:
        """Return the end of the last call that ended with every step done; None: there is none."""
        names = sorted((name for name in attempts if name.endswith("-end.json")), reverse=True)
        ends = (self._read(f"attempts/{name}", AttemptEnd) for name in names)
        return next((end for end in ends if end.outcome == "complete"), None)

    def status(self) -> RunStatus:
        """Return the state of the run.

        Cost: 3 LIST + 2 GET, and 1 GET for each call that took steps over; where the last call did not end a run whose
        steps are all done, 1 GET a call.
        """
        run = self.run()
        steps = {int(name.removesuffix(".json")) for name in self._names("steps")}
        done_count = len(steps | {record.ordinal for record in self._read_carried(self._names("carried"))})
        attempts = self._names("attempts")
        count = sum(name.endswith("-start.json") for name in attempts)
        last_end = f"{count:06d}-end.json"
        end = self._read(f"attempts/{last_end}", AttemptEnd) if last_end in attempts else None
        if done_count >= run.step_count and (end is None or end.outcome != "complete"):
            end = self._find_complete(attempts) or end
        state = "unfinished" if end is None else end.outcome
        return RunStatus(
            run_id=run.run_id,
            pipeline=run.pipeline,
            state=state,
            steps_total=run.step_count,
            steps_done=done_count,
            started_ms=run.started_ms,
            ended_ms=None if end is None else end.ended_ms,
            attempts=count,
            failed_step=None if end is None else end.step,
            error=None if end is None else end.error,
        )

    def _create(self, name: str, value: object) -> None:
        self._store.put(f"{self._folder}/{name}", msgspec.json.encode(value), create_only=True)

    def _read(self, name: str, kind: type[T]) -> T:
        path = f"{self._folder}/{name}"
        body = bytes(memoryview(self._store.get(path)))
        try:
            return decode_json(body, kind)
        except msgspec.MsgspecError as error:
            raise Corruption(f"The run ledger's {path} is damaged: {error}.", path=path) from error

    def _names(self, folder: str) -> list[str]:
        prefix = f"{self._folder}/{folder}"
        return [meta.path.rpartition("/")[2] for meta in self._store.list(prefix)]


def _there(ids: list[str]) -> str:
    if not ids:
        return "No pipeline has run in it."
    run_ids = ", ".join(ids[-_SHOWN_RUNS_MAX:])
    return f"It has {'' if len(ids) <= _SHOWN_RUNS_MAX else f'{len(ids):,}, the last '}{run_ids}."


def run_ids(store: ObjectStore) -> list[str]:
    """Return every run of a lake, sorted by id. Cost: 1 LIST."""
    return sorted(folder.rpartition("/")[2] for folder in store.list_with_delimiter(RUNS_FOLDER).folders)


def run_statuses(store: ObjectStore, *, environment: Environment) -> list[RunStatus]:
    """Return the state of every run of a lake, newest first. Cost: 1 LIST, then 2 LIST + 2 GET a run."""
    statuses = [Ledger(store, run_id=run_id, environment=environment).status() for run_id in run_ids(store)]
    return sorted(statuses, key=lambda status: (status.started_ms, status.run_id), reverse=True)
