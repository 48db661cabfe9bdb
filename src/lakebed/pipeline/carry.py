"""Edited pipelines: which finished steps count as done, and which would run again. Pure.

Owns: `plan_carry`. A step of the new plan takes over the record of an earlier step of the same pipeline if:

- both have the same `StepIdentity.source` and the same input; and
- every step before it that writes to a table that it touches is done too, and was done earlier (or an earlier run had
  both in this order, by consent).

A finished step that cannot be taken over would run again. If it changes rows or names of versions, a user must consent
to that (`--replay`), or to keeping the earlier result (`--carry`). Consent to keep a result also holds for later plans.

Invariants: no I/O. Decides step by step, in the order of the plan.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from lakebed.errors import InvalidRequest
from lakebed.pipeline.model import Plan, StepIdentity, StepRecord
from lakebed.pipeline.nodes import nearest

_ACCEPTED = "content_accepted"
"""The metric of a carried record: the content of the input for which it was kept. DO NOT CHANGE: on disk."""

_SHOWN_MAX = 12


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """An earlier run of the same pipeline."""

    run_id: str
    variables: Mapping[str, str]
    records: Mapping[int, StepRecord]
    """Records of steps by ordinal, including those that the run itself took over."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """A finished step that would run again."""

    identity: StepIdentity
    reason: str


@dataclass(frozen=True, slots=True)
class Carry:
    """The result of `plan_carry`."""

    records: tuple[StepRecord, ...]
    """Records for steps of the new plan, made from records of earlier runs."""
    reruns: tuple[Rerun, ...]
    """Steps that need consent; empty: the run may begin."""


@dataclass(slots=True)
class _Tables:
    """The state of the tables while `plan_carry` goes through the plan step by step."""

    search: _Search
    pending: dict[str, str] = field(default_factory=dict)
    """By table: the name of its first unfinished writer."""
    newest: dict[str, tuple[str, StepRecord]] = field(default_factory=dict)
    """By table: the run and the record of its last finished writer."""
    undone: str | None = None
    """The first step that is not done."""
    last: dict[str, StepRecord] = field(default_factory=dict)
    """By run: the last of its steps that count as done."""

    def obstacle(self, identity: StepIdentity, run_id: str, record: StepRecord) -> str | None:
        """Return why a record does not count for the step any more; None: it counts."""
        for table in sorted(identity.touches):
            if table in self.pending:
                return f"'{self.pending[table]}' runs before it and writes to '{table}'"
            if table in self.newest and self._is_late(run_id, record, *self.newest[table], table=table):
                return self._late(run_id, record, self.newest[table][1])
        if not identity.depends_on_all:
            return None
        if self.undone is not None:
            return f"'{self.undone}' runs before it"
        later = [other for ran, other in self.last.items() if self._is_late(run_id, record, ran, other)]
        return self._late(run_id, record, later[0]) if later else None

    def _is_late(
        self, run_id: str, record: StepRecord, other_id: str, other: StepRecord, *, table: str | None = None
    ) -> bool:
        """Return whether the other step, which the plan has before it, was done after it, and no run accepted that."""
        if not _is_before(run_id, record, other_id, other, table=table):
            return False
        return not self.search.is_accepted(_key(run_id, record), after=_key(other_id, other))

    def _late(self, run_id: str, record: StepRecord, other: StepRecord) -> str:
        if self.search.was_before(run_id, record, other):
            return f"'{other.name}' was run again after it"
        return f"'{other.name}', which now is before it, was done after it"

    def note_done(self, identity: StepIdentity, run_id: str, record: StepRecord) -> None:
        """Note that a step is done."""
        if run_id not in self.last or _ordinal(self.last[run_id]) < _ordinal(record):
            self.last[run_id] = record
        if identity.writes is not None:
            self.newest[identity.writes] = (run_id, record)

    def note_pending(self, identity: StepIdentity) -> None:
        """Note that a step will run."""
        self.undone = self.undone or identity.step.name
        if identity.writes is not None:
            self.pending.setdefault(identity.writes, identity.step.name)


def plan_carry(
    plan: Plan,
    identities: Sequence[StepIdentity],
    *,
    run_id: str,
    done: Mapping[int, StepRecord],
    earlier: Sequence[EarlierRun],
    content: Callable[[StepIdentity], str | None],
    replay: Sequence[str] = (),
    carry: Sequence[str] = (),
) -> Carry:
    """Decide for every step of a plan that is not done in its own run.

    Args:
        identities: of its steps.
        run_id: of the plan's own run.
        done: the records of that run.
        earlier: other runs of the pipeline, oldest first.
        content: the identity of a step's input now; None: unknown, which counts as unchanged.
        replay: names of steps (or patterns such as ``merge *``) that run again.
        carry: names of steps whose earlier record counts although they differ.
    """
    search = _Search(plan, earlier)
    tables = _Tables(search)
    records: list[StepRecord] = []
    reruns: list[Rerun] = []
    for identity in identities:
        step = identity.step
        record = done.get(step.ordinal)
        same, namesake = search.same(identity), search.find_named(identity)  # also of a done step: each takes its turn
        if record is not None:
            tables.note_done(identity, _origin(record, run_id), record)
            continue
        if matches(step.name, replay):
            tables.note_pending(identity)
            continue
        reason = (
            None
            if same is None
            else tables.obstacle(identity, same[0], same[1]) or input_change(same[1], identity, content)
        )
        candidate = same or namesake
        stands = same is not None and reason is None
        if candidate is not None and (stands or matches(step.name, carry)):
            accepted = None if stands else _content(candidate[1], identity, content)
            records.append(_take_over(candidate, identity, accepted=accepted))
            tables.note_done(identity, *candidate)
            continue
        tables.note_pending(identity)
        if candidate is not None and identity.needs_consent:
            reruns.append(Rerun(identity, reason or search.change(identity)))
    return Carry(tuple(records), tuple(reruns))


class _Search:
    """Finds records of earlier runs."""

    def __init__(self, plan: Plan, earlier: Sequence[EarlierRun]) -> None:
        self._by_name: dict[tuple[str, str], tuple[str, StepRecord]] = {}
        self._by_source: dict[tuple[str, str], tuple[str, StepRecord]] = {}
        self._by_turn: dict[tuple[str, int], tuple[str, StepRecord]] = {}
        self._legacy: dict[str, list[tuple[set[str], tuple[str, StepRecord]]]] = defaultdict(list)
        self._turns: Counter[str] = Counter()
        self._orders: list[dict[tuple[str, int], int]] = []
        self._places: dict[str, dict[tuple[str, str], int]] = {}
        for run in earlier:
            self._index(run, is_alike=run.variables == plan.variables)

    def _index(self, run: EarlierRun, *, is_alike: bool) -> None:
        turns: dict[str, int] = defaultdict(int)
        views: dict[str, str] = {}
        in_order = sorted(run.records.values(), key=lambda record: record.ordinal)
        self._orders.append({_key(_origin(record, run.run_id), record): record.ordinal for record in in_order})
        self._places[run.run_id] = {(record.verb, record.name): record.ordinal for record in in_order}
        for record in in_order:
            candidate = (_origin(record, run.run_id), record)
            if is_alike:
                _keep(self._by_name, (record.verb, record.name), candidate)
            if "view" in record.metrics:
                views[str(record.metrics["view"])] = record.fingerprint
            if record.identity:
                _keep(self._by_source, (record.identity, record.name), candidate)
                _keep(self._by_turn, (record.identity, turns[record.identity]), candidate)
                turns[record.identity] += 1
            else:
                # Written by an older version: it is identified by the digest of its settings and of those of its
                # views.
                self._legacy[record.fingerprint].append((set(views.values()), candidate))

    def same(self, identity: StepIdentity) -> tuple[str, StepRecord] | None:
        """Return the last record of the same identity, by the step's name or else its position among equal ones."""
        position = self._turns[identity.source]
        self._turns[identity.source] += 1
        candidate = self._by_source.get((identity.source, identity.step.name)) or self._by_turn.get(
            (identity.source, position)
        )
        return candidate or self._old(identity)

    def _old(self, identity: StepIdentity) -> tuple[str, StepRecord] | None:
        needed_views = {view.fingerprint for view in identity.views if view != identity.step}
        for views, candidate in reversed(self._legacy.get(identity.step.fingerprint, [])):
            if needed_views <= views:
                return candidate
        return None

    def find_named(self, identity: StepIdentity) -> tuple[str, StepRecord] | None:
        """Return the record of a step of the same kind and name, in a run with the same variables."""
        return self._by_name.get((identity.step.kind, identity.step.name))

    def is_accepted(self, step: tuple[str, int], *, after: tuple[str, int]) -> bool:
        """Return whether the newest run with both had them in the order of the plan."""
        for order in reversed(self._orders):
            if step in order and after in order:
                return order[after] < order[step]
        return False

    def was_before(self, run_id: str, record: StepRecord, other: StepRecord) -> bool:
        """Return whether the run that did a step had the other one, by its name, before it."""
        place = self._places.get(run_id, {}).get((other.verb, other.name))
        return place is not None and place < _ordinal(record)

    def change(self, identity: StepIdentity) -> str:
        """Return how a step differs from the earlier step of its name."""
        namesake = self.find_named(identity)
        if namesake is None or namesake[1].fingerprint != identity.step.fingerprint:
            return "it was changed"
        for view in identity.views:
            earlier_step = self._by_name.get((view.kind, view.name))
            if earlier_step is None or earlier_step[1].fingerprint != view.fingerprint:
                return f"'{view.name}', which it reads, was changed"
        return "it was changed"


def _keep(
    index: dict[Any, tuple[str, StepRecord]], key: tuple[str, str] | tuple[str, int], candidate: tuple[str, StepRecord]
) -> None:
    """Keep the record of the newer run, unless it only took over a step that was done earlier."""
    current = index.get(key)
    if current is None or not candidate[1].carried_from or current[1].started_ms <= candidate[1].started_ms:
        index[key] = candidate


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a pattern names a step."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def refuse_reruns(plan: Plan, reruns: Sequence[Rerun]) -> InvalidRequest:
    """Return the error that lists the steps that would run again, and how to decide."""
    names = [
        f"'{step.identity.step.name}' (line {step.identity.step.line}: {step.reason})" for step in reruns[:_SHOWN_MAX]
    ]
    rest = f", and {len(reruns) - _SHOWN_MAX} more" if len(reruns) > _SHOWN_MAX else ""
    count = (
        "1 step that an earlier run finished" if len(reruns) == 1 else f"{len(reruns)} steps that earlier runs finished"
    )
    return InvalidRequest(
        f"{plan.file}: {count} would run again: {', '.join(names)}{rest}. Nothing was done. Say --replay and the name "
        "to run a step again, or --carry and the name to keep what was done; both take patterns, such as "
        f"--replay '{reruns[0].identity.step.kind} *', and can be repeated.",
        kind="replay_needed",
        steps=[step.identity.step.name for step in reruns],
        reasons=[step.reason for step in reruns],
    )


def check_patterns(plan: Plan, *, replay: Sequence[str], carry: Sequence[str]) -> None:
    """Raise `InvalidRequest` for a name or pattern that fits no step, and for a step that both options name."""
    names = [step.name for step in plan.steps]
    for option, patterns in (("--replay", replay), ("--carry", carry)):
        for pattern in patterns:
            if not any(matches(name, [pattern]) for name in names):
                raise InvalidRequest(
                    f"{plan.file}: {option} '{pattern}' names no step.{nearest(pattern, names)}", step=pattern
                )
    for name in names:
        if matches(name, replay) and matches(name, carry):
            raise InvalidRequest(f"{plan.file}: --replay and --carry both name the step '{name}'.", step=name)


def input_change(
    record: StepRecord, identity: StepIdentity, content: Callable[[StepIdentity], str | None]
) -> str | None:
    """Return how the input differs from the record's; None: it does not. An unknown input counts as unchanged."""
    now = _content(record, identity, content)
    known_inputs = (record.metrics.get("content"), record.metrics.get(_ACCEPTED))
    return None if now is None or now in known_inputs else "its input has changed"


def _content(record: StepRecord, identity: StepIdentity, content: Callable[[StepIdentity], str | None]) -> str | None:
    """Return the identity of the step's input now; None: there is nothing to compare it with."""
    return content(identity) if record.metrics.get("content") is not None and identity.views else None


def _take_over(candidate: tuple[str, StepRecord], identity: StepIdentity, *, accepted: str | None) -> StepRecord:
    """Return the record for this step; `accepted`: the content of another input for which a person kept it."""
    run_id, record = candidate
    step = identity.step
    return replace(
        record,
        metrics=record.metrics if accepted is None else {**record.metrics, _ACCEPTED: accepted},
        ordinal=step.ordinal,
        name=step.name,
        group=step.group,
        fingerprint=step.fingerprint,
        identity=identity.source,
        carried_from=f"{run_id}/{_ordinal(record)}",
    )


def _key(run_id: str, record: StepRecord) -> tuple[str, int]:
    """Return which execution of a step it was: the run, and the ordinal in it."""
    return run_id, _ordinal(record)


def _origin(record: StepRecord, run_id: str) -> str:
    return record.carried_from.rpartition("/")[0] or run_id


def _is_before(run_id: str, record: StepRecord, other_id: str, other: StepRecord, *, table: str | None = None) -> bool:
    """Return whether a step was done before another one: by commits to the table, order in one run, or the clock."""
    commits = [
        step.metrics.get("snapshot")
        for step in (record, other)
        if table is not None and step.metrics.get("table") == table
    ]
    numbers = [int(snapshot) for snapshot in commits if snapshot is not None]
    if len(numbers) == 2:
        return numbers[0] < numbers[1]
    if run_id == other_id:
        return _ordinal(record) < _ordinal(other)
    return record.started_ms < other.started_ms


def _ordinal(record: StepRecord) -> int:
    return int(record.carried_from.rpartition("/")[2] or record.ordinal)
