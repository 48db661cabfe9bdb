"""Which increments were merged into which table: one small create-only object each, written before the commit.

    <lake>/_lakebed/increments/<40 hex digits>.json     table and content -> the step that merges it (`Increment`)

Owns: this name, and `commit_identity`. DO NOT CHANGE: on disk. Invariants:
- The first step that is about to merge an increment into a table writes the object, which names the commit.
- A later step of another run with the same increment is refused before it commits, if the increment was merged. If the
  first step was killed or still runs, the later step commits under the first step's identity, which the table accepts
  only once. So the increment is merged once, whichever step finishes first.
- Within one run an increment may be merged several times.
- A run may be killed between a commit and its record, and continue with another input. It never mistakes that commit
  for the commit of the new input: a commit of the step without the increment's object is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from lakebed.errors import AlreadyExists, Rejected, UnsupportedFormat
from lakebed.objects.document import decode_object
from lakebed.objects.port import ObjectStore, has_object
from lakebed.pipeline.inputs import digest
from lakebed.pipeline.ledger import Ledger
from lakebed.pipeline.model import PlannedStep, StepIdentity
from lakebed.pipeline.nodes import SourceLocation
from lakebed.table.branch.earlier_commits import find_commit
from lakebed.table.table import Table

FORMAT = 1
INCREMENTS_FOLDER = "_lakebed/increments"


@dataclass(frozen=True, slots=True)
class Increment:
    """Who merges an increment."""

    format: int
    table: str
    table_created_ms: int
    """Tells a table from an earlier one of the same name."""
    content: str
    """The identity from `inputs.Inputs`."""
    run_id: str
    ordinal: int
    step: str
    identity: str
    """`StepIdentity.source` of that step."""
    commit_user: str
    commit_identifier: int
    claimed_ms: int


@dataclass(frozen=True, slots=True)
class StepCommit:
    """The commit that a step is about to make into a table."""

    table: Table
    name: str
    """The table, as the pipeline calls it."""
    identity: StepIdentity
    own: dict[str, Any]
    """``commit_user`` and ``commit_identifier`` of the step itself."""
    run_id: str
    location: SourceLocation
    """Location of the step, for errors."""
    is_resumed: bool = False
    """The run was called before, so a killed call may have made the step's commit."""
    is_replayed: bool = False
    """A person asked to merge the increment again."""

    @property
    def step(self) -> PlannedStep:
        """The step."""
        return self.identity.step

    def rejection(self, sentence: str, *, kind: str, **facts: Any) -> Rejected:
        """Return the error that stops the run at this step."""
        return Rejected(
            f"{self.location}: {self.step.name} stopped the run: {sentence}",
            kind=kind,
            step=self.step.name,
            table=self.name,
            **facts,
        )


def commit_identity(
    store: ObjectStore, commit: StepCommit, *, content: str | None, ledger_of: Callable[[str], Ledger]
) -> dict[str, Any]:
    """Return the identity that the commit of an increment must have.

    Args:
        content: of the increment; None: unknown, so it counts as a new one.
        ledger_of: the ledger of a run, by its id.

    Raises `Rejected`: another run merged the same increment; ``kind`` is ``merged_already``. A killed call of this run
    has committed another increment; ``kind`` is ``input_changed``. Cost: 1 PUT; when the increment was met before, also
    1 or 2 GET; of a resumed run also 1 probe and 2 GET.
    """
    table, name, identity = commit.table, commit.name, commit.own
    is_resumed, is_replayed = commit.is_resumed, commit.is_replayed
    if content is None:
        return identity
    created_ms = table.context.schemas.load(0).time_ms
    path = f"{INCREMENTS_FOLDER}/{digest([name, created_ms, content])[:40]}.json"
    if is_resumed and not has_object(store, path) and (earlier := find_commit(table.context, **identity)) is not None:
        if not is_replayed:
            raise _input_changed(commit, earlier.id)
        identity = {**identity, "commit_user": f"{identity['commit_user']}:{content[:12]}"}
    claim = _claim(
        store,
        path,
        Increment(
            format=FORMAT,
            table=name,
            table_created_ms=created_ms,
            content=content,
            run_id=commit.run_id,
            ordinal=commit.step.ordinal,
            step=commit.step.name,
            identity=commit.identity.source,
            claimed_ms=table.context.environment.clock.now_ms(),
            **identity,
        ),
    )
    if claim is None:
        return identity
    claimed = {"commit_user": claim.commit_user, "commit_identifier": claim.commit_identifier}
    if claim.run_id == commit.run_id:
        return claimed if claim.ordinal == commit.step.ordinal else identity
    record = ledger_of(claim.run_id).record_of(claim.ordinal)
    if record is None:
        snapshot = find_commit(table.context, claim.commit_user, claim.commit_identifier)
        if snapshot is None or claim.identity == commit.identity.source:
            return claimed  # that step was killed before its commit or its record, or runs now: one commit results
    elif record.metrics.get("content") != content or not record.metrics.get("rows"):
        return identity  # the other step continued with another content, or its increment had no rows
    if is_replayed:
        return identity
    when = "" if record is None else f" as snapshot {record.metrics.get('snapshot')}"
    raise commit.rejection(
        f"the run '{claim.run_id}' merged the same increment into '{name}' already{when} (its step '{claim.step}'), "
        "and to merge it again would put its rows over newer ones. Nothing was committed. To merge it again, say "
        f"--replay '{commit.step.name}'. A column that tells older rows from newer ones, given as `sequence`, makes "
        "late and repeated merges harmless.",
        kind="merged_already",
        run_id=claim.run_id,
    )


def _input_changed(commit: StepCommit, snapshot_id: int) -> Rejected:
    """The error of a step whose commit exists without a record, and whose input has changed since."""
    return commit.rejection(
        f"its commit into '{commit.name}' was made as snapshot {snapshot_id} when the run was killed, and its input "
        "has changed since. Nothing was committed. Restore the input to continue that commit, or say "
        f"--replay '{commit.step.name}' to merge the changed one too.",
        kind="input_changed",
        snapshot=snapshot_id,
    )


def _claim(store: ObjectStore, path: str, claim: Increment) -> Increment | None:
    """Write a claim. Return the earlier claim of the same increment; None when there was none."""
    try:
        store.put(path, msgspec.json.encode(claim), create_only=True)
    except AlreadyExists:
        earlier = decode_object(store.get(path), Increment, path=path)
    else:
        return None
    if earlier.format > FORMAT:
        raise UnsupportedFormat(
            f"The record of an increment at {path} has the format {earlier.format}, and this lakebed reads up to "
            f"{FORMAT}: upgrade lakebed.",
            path=path,
        )
    return earlier
