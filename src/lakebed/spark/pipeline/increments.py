"""Which increments were merged into which table: one small create-only object each, written before the commit.

    <lake>/_lakebed/increments/<40 hex digits>.json     table and content -> the step that merges it (`Increment`)

Owns: this name, and `commit_identity`. DO NOT CHANGE: on disk. Invariants:
- The first step that is about to merge an increment into a table writes the object; it names the commit.
- Whoever comes with the same increment later, under another run, either finds that it was merged and is refused before
  anything is committed, or (when that step was killed, or still runs) commits under the first one's identity, which the
  table accepts once: so the increment is merged once, whoever finishes first.
- Within one run an increment may be merged several times.
- A run that was killed between a commit and its record, and goes on with another input, takes that commit for no other
  increment: a commit of the step without the increment's object is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from lakebed.errors import AlreadyExists, Corruption, NotFound, Rejected
from lakebed.objects.port import ObjectStore
from lakebed.spark.pipeline.inputs import digest
from lakebed.spark.pipeline.ledger import Ledger
from lakebed.spark.pipeline.model import PlannedStep, StepIdentity
from lakebed.spark.pipeline.nodes import SourceLocation
from lakebed.table.table import Table

__all__ = ["INCREMENTS_FOLDER", "Increment", "commit_identity"]

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
    """Of `inputs.Inputs`."""
    run_id: str
    ordinal: int
    step: str
    identity: str
    """`StepIdentity.source` of that step."""
    commit_user: str
    commit_identifier: int
    claimed_ms: int


def commit_identity(
    store: ObjectStore,
    table: Table,
    *,
    name: str,
    content: str | None,
    identity: StepIdentity,
    own: dict[str, Any],
    run_id: str,
    is_resumed: bool,
    is_replayed: bool,
    location: SourceLocation,
    ledger_of: Callable[[str], Ledger],
) -> dict[str, Any]:
    """The identity that the commit of an increment has to have.

    Args:
        store: the lake's root.
        name: the table, as the pipeline calls it.
        content: of the increment; None: unknown, so it is taken for a new one.
        own: ``commit_user`` and ``commit_identifier`` of the step itself.
        is_resumed: the run was called before, so that a killed call may have made the step's commit.
        is_replayed: a person asked to merge it again.
        location: of the step, for the error.

    Raises:
        Rejected: another run merged the same increment; ``kind`` is ``merged_already``. A killed call of this run has
            committed another increment; ``kind`` is ``input_changed``.

    Cost: 1 PUT; when the increment was met before, also 1 or 2 GET; of a resumed run also 1 probe and 2 GET.
    """
    if content is None:
        return own
    created_ms = table.schemas.load(0).time_ms
    path = f"{INCREMENTS_FOLDER}/{digest([name, created_ms, content])[:40]}.json"
    if is_resumed and not _is_claimed(store, path) and (earlier := table.committer.find(**own)) is not None:
        if not is_replayed:
            raise _changed(identity.step, location, name, earlier.id)
        own = {**own, "commit_user": f"{own['commit_user']}:{content[:12]}"}
    claim = _claimed(store, path, _claim(identity.step, table, name, created_ms, content, identity, own, run_id))
    if claim is None:
        return own
    if claim.run_id == run_id:
        named = {"commit_user": claim.commit_user, "commit_identifier": claim.commit_identifier}
        return named if claim.ordinal == identity.step.ordinal else own
    recorded = ledger_of(claim.run_id).record_of(claim.ordinal)
    if recorded is None:
        taken = {"commit_user": claim.commit_user, "commit_identifier": claim.commit_identifier}
        committed = table.committer.find(claim.commit_user, claim.commit_identifier)
        if committed is None or claim.identity == identity.source:
            return taken  # it was killed before its commit or its record, or runs now: one of the two commits
    elif recorded.metrics.get("content") != content or not recorded.metrics.get("rows"):
        return own  # the other step went on with another content, or there was nothing in it
    if is_replayed:
        return own
    when = "" if recorded is None else f" as snapshot {recorded.metrics.get('snapshot')}"
    raise Rejected(
        f"{location}: {identity.step.name} stopped the run: the run '{claim.run_id}' merged the "
        f"same increment into '{name}' already{when} (its step '{claim.step}'), and to merge it again would put its "
        f"rows over newer ones. Nothing was committed. To merge it again, say --replay '{identity.step.name}'. A "
        "column that tells older rows from newer ones, given as `sequence`, makes late and repeated merges harmless.",
        kind="merged_already",
        step=identity.step.name,
        run_id=claim.run_id,
        table=name,
    )


def _changed(step: PlannedStep, location: SourceLocation, name: str, snapshot_id: int) -> Rejected:
    """The error of a step whose commit is there, without a record, and whose input is another one now."""
    return Rejected(
        f"{location}: {step.name} stopped the run: its commit into '{name}' was made as snapshot "
        f"{snapshot_id} when the run was killed, and its input has changed since. Nothing was committed. Restore the "
        f"input to go on with that commit, or say --replay '{step.name}' to merge the changed one too.",
        kind="input_changed",
        step=step.name,
        table=name,
        snapshot=snapshot_id,
    )


def _is_claimed(store: ObjectStore, path: str) -> bool:
    try:
        store.head(path)
    except NotFound:
        return False
    return True


def _claim(
    step: PlannedStep,
    table: Table,
    name: str,
    created_ms: int,
    content: str,
    identity: StepIdentity,
    own: dict[str, Any],
    run_id: str,
) -> Increment:
    return Increment(
        format=FORMAT,
        table=name,
        table_created_ms=created_ms,
        content=content,
        run_id=run_id,
        ordinal=step.ordinal,
        step=step.name,
        identity=identity.source,
        claimed_ms=table.environment.clock.now_ms(),
        **own,
    )


def _claimed(store: ObjectStore, path: str, claim: Increment) -> Increment | None:
    """Write a claim; the one that was there before, when there is one."""
    try:
        store.put(path, msgspec.json.encode(claim), create_only=True)
    except AlreadyExists:
        try:
            return msgspec.json.decode(bytes(memoryview(store.get(path))), type=Increment)
        except msgspec.MsgspecError as error:
            raise Corruption(f"The record of an increment at {path} is damaged: {error}.", path=path) from error
    return None
