"""Runs of actions: the hooks that ran at an event, and their results.

Owns: the records below ``runs/`` and their limits. A run is recorded before its first hook, and again at its end. If
the process dies in between, the first record stays, and shows a failed run. Ids sort newest first.

Invariants: about `RUNS_MAX` runs of a repository are kept at most, for `RUN_DAYS` at most. The output of a hook is cut
at `OUTPUT_BYTES_MAX`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from lakebed.errors import NotFound
from lakebed.repo.model.options import DAY_MS
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import decode_record, encode_record, read_records

RUNS_MAX: Final = 1_000
RUN_DAYS: Final = 30
OUTPUT_BYTES_MAX: Final = 16 << 10
_FAR_MS: Final = 1 << 44
"""A time later than all others. Ids have the time left until it, so the newest sorts first. Stored: DO NOT CHANGE."""
_ID: Final = re.compile(r"[0-9a-f]{11}-[0-9a-f]{16}")
_DELETED_AT_ONCE: Final = 1_000


class HookRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A hook of a run. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    action: str
    hook_id: str
    started_at_ms: int
    ended_at_ms: int
    passed: bool
    output: str = ""


class ActionRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    event: str
    branch: str
    """Empty for tags."""
    commit_id: str
    started_at_ms: int
    ended_at_ms: int | None = None
    """None: it has not ended, or its process died."""
    passed: bool = False
    hooks: tuple[HookRun, ...] = ()


def new_run_id(context: RepositoryContext) -> str:
    """A new id, which sorts before all older ids."""
    return f"{_FAR_MS - context.now_ms():011x}-{context.environment.rng.getrandbits(64):016x}"


def store_run(context: RepositoryContext, id: str, run: ActionRun) -> None:
    """Record a run at its start or at its end. Cost: 1 write."""
    context.key_value.set(context.keys.run(id), encode_record(run))


def load_run(context: RepositoryContext, id: str) -> ActionRun:
    """Load a run. Raises `NotFound` (``run_not_found``). Cost: 1 read."""
    raw = context.key_value.get(context.keys.run(id)) if _ID.fullmatch(id) else None
    if raw is None:
        raise NotFound(
            f"Repository {context.name} has no run {id[:100]!r} of actions: the last {RUNS_MAX:,} of {RUN_DAYS} days "
            "are kept.",
            kind="run_not_found",
        )
    return decode_record(raw, ActionRun, key=context.keys.run(id))


def list_runs(
    context: RepositoryContext, *, after: str = "", branch: str = "", commit: str = ""
) -> Iterator[tuple[str, ActionRun]]:
    """Iterate over ids and runs, newest first, lazily; only those of a branch or commit, if given. Cost: 1 scan."""
    with context.key_value.snapshot() as snapshot:
        for id, run in read_records(snapshot, context.keys.run(), ActionRun, after=after or None):
            if branch in ("", run.branch) and commit in ("", run.commit_id):
                yield id, run


def trim_runs(context: RepositoryContext) -> int:
    """Delete runs beyond the limits, and return their number. Cost: 1 scan; 1 write if there are any."""

    def find_old(now_ms: int) -> list[str]:
        oldest = f"{_FAR_MS - now_ms + RUN_DAYS * DAY_MS:011x}"
        ids = (id for number, (id, _) in enumerate(list_runs(context)) if number >= RUNS_MAX or id > oldest)
        return list(islice(ids, _DELETED_AT_ONCE))

    old_runs = find_old(context.now_ms())
    if old_runs:
        old_runs = find_old(context.earlier_ms())
    if old_runs:
        context.key_value.write(deletes=[context.keys.run(id) for id in old_runs])
    return len(old_runs)


def cut_output(text: str) -> str:
    """A text, cut to the size that is kept."""
    raw = text.encode(errors="replace")
    if len(raw) <= OUTPUT_BYTES_MAX:
        return raw.decode()
    return raw[:OUTPUT_BYTES_MAX].decode(errors="ignore") + "\n... (cut)\n"
