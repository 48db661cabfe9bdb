"""The schedule of a tenant: which step is due, and what follows from its errors.

Owns: the order of steps, the rules for commits, and the waits after failures. Invariants: an idle tenant
has no step due. A step that fails, even by a defect, is tried again after a wait, and loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lakebed.backoff import Pauses
from lakebed.errors import (
    Conflict,
    Corruption,
    InternalError,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    UnsupportedFormat,
)
from lakebed.fleet.node.attached import AttachedTenant, TenantState
from lakebed.fleet.node.context import NodeContext
from lakebed.fleet.node.transaction import OpenTransaction
from lakebed.log import logger

_LOG: Final = logger("fleet")

_STEPS: Final = ("settle", "retire", "commit", "flush", "ingest", "compact")
"""The steps, most urgent first."""


class Schedule:
    """The steps of one tenant. One worker at a time calls `run`."""

    def __init__(self, context: NodeContext, attached: AttachedTenant) -> None:
        self.attached = attached
        self._context = context
        self._location = attached.location
        options = context.options
        self._retries = _Retries(Pauses(options.retry_first_ms / 1000, options.retry_max_ms / 1000))

    def due(self, now_ms: int) -> str | None:
        """Return the name of the most urgent step, for `run`; None: nothing to do now.

        Cost: some microseconds; no request.

        Args:
            now_ms: `NodeContext.monotonic_ms`.
        """
        if self.attached.location is not self._location:
            self._location = self.attached.location
            self._retries.note_success("settle")
        for step in _STEPS:
            if self._retries.may_try(step, now_ms) and self._is_due(step, now_ms):
                return step
        return None

    def _is_due(self, step: str, now_ms: int) -> bool:
        attached = self.attached
        match step:
            case "settle":
                return not attached.is_settled
            case "retire":
                return not attached.retirement.is_empty or (
                    attached.state is TenantState.DETACHED and not attached.is_gone
                )
            case "ingest":
                return attached.is_behind and not attached.is_paused
        transaction = attached.transaction
        if transaction is None:
            return False
        if step == "commit":
            return self._commit_is_due(transaction, now_ms)
        timelines = attached.timelines.values()
        if transaction.request is not None:
            return False
        if step == "flush":
            return any(timeline.needs_flush for timeline in timelines)
        return any(timeline.needs_compaction and not timeline.is_read_only for timeline in timelines)

    def _commit_is_due(self, transaction: OpenTransaction, now_ms: int) -> bool:
        context, attached = self._context, self.attached
        policy = attached.location.policy
        if not context.is_reported:
            return False
        if transaction.request is not None:
            return True
        if context.control_is_away:
            return False
        return self._is_asked_or_old(transaction, now_ms) or attached.uncommitted_bytes >= min(
            max(policy.commit_bytes, 4 * attached.manifest_bytes), policy.uncommitted_bytes_max
        )

    def _is_asked_or_old(self, transaction: OpenTransaction, now_ms: int) -> bool:
        """Whether a commit is due, even if there is little to commit."""
        attached = self.attached
        if attached.is_asked:
            return True
        lifetimes = [index.expires_ms for index in transaction.timelines.values() if index.expires_ms is not None]
        if lifetimes and min(lifetimes) <= self._context.agreed_ms():
            return True
        since_ms = attached.dirty_since_ms
        return since_ms is not None and now_ms - since_ms >= attached.location.policy.commit_age_ms

    def _commit(self) -> bool:
        """Commit. If only the size makes it due, wait until the layers are four times as large as the manifest."""
        attached = self.attached
        transaction = attached.transaction
        if (
            transaction is not None
            and transaction.request is None
            and not self._is_asked_or_old(transaction, self._context.monotonic_ms())
            and attached.flush_once()
            and transaction.layer_bytes < 4 * attached.manifest_bytes
        ):
            return True
        return attached.commit_once()

    @property
    def is_idle(self) -> bool:
        """Whether no step will be due before something happens to the tenant."""
        attached = self.attached
        transaction = attached.transaction
        return (
            attached.is_settled
            and attached.retirement.is_empty
            and attached.dirty_since_ms is None
            and not attached.is_asked
            and attached.lag_rows == 0
            and (transaction is None or transaction.request is None)
            and (transaction is None or all(index.expires_ms is None for index in transaction.timelines.values()))
        )

    def run(self, step: str) -> bool:
        """Run a step that `due` returned. Return whether it did anything. Keep an error, and try the step again later.

        Raises: unexpected errors.
        """
        attached = self.attached
        steps: dict[str, Callable[[], bool | None]] = {
            "settle": attached.settle,
            "retire": attached.retire_once,
            "commit": self._commit,
            "flush": lambda: attached.flush_once(rotate=False),
            "ingest": self._catch_up,
            "compact": attached.compact_once,
        }
        return self._try_step(step, steps[step])

    def relieve(self, timeline: str) -> bool:
        """Flush all rows of one timeline, unless a flush of this tenant must wait. Return whether this was done."""
        attached = self.attached
        transaction, now_ms = attached.transaction, self._context.monotonic_ms()
        if transaction is None or transaction.request is not None or not self._retries.may_try("flush", now_ms):
            return False
        return self._try_step("flush", lambda: attached.flush_timeline(timeline))

    def _try_step(self, step: str, call: Callable[[], bool | None]) -> bool:
        attached, now_ms = self.attached, self._context.monotonic_ms()
        try:
            is_done = call() is not False
        except (Unavailable, OutcomeUnknown, Conflict, NotFound, Corruption, UnsupportedFormat) as error:
            self._note_failure(step, error, now_ms)
            return False
        except Exception as error:
            self._note_failure(step, InternalError(f"The step {step} of {attached.tenant} failed: {error!r}."), now_ms)
            raise
        if is_done:
            self._retries.note_success(step)
        else:
            self._retries.postpone(step, now_ms)
        attached.problem = None
        return is_done

    def _catch_up(self) -> bool:
        with self._context.catching_up.one():
            return self.attached.ingest_once()

    def _note_failure(self, step: str, error: LakebedError, now_ms: int) -> None:
        self._retries.note_failure(step, now_ms)
        self.attached.problem = error
        if isinstance(error, NotFound) and step in ("flush", "compact"):
            self.attached.ask()  # a file is gone: in a transaction that will be rejected this is normal
        _LOG.info("step failed", tenant=self.attached.tenant, step=step, kind=error.kind, error=str(error))


class _Retries:
    """Pauses of steps, by their names; a worker runs other steps meanwhile.

    Times are milliseconds of a monotonic clock, from any start. Thread-safe; two concurrent failures of one step may
    count as one.
    """

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._waits: dict[str, tuple[int, int]] = {}
        """Failures in a row, and the time before which the step is not tried."""

    def may_try(self, step: str, now_ms: int) -> bool:
        """Whether the pause is over."""
        wait = self._waits.get(step)
        return wait is None or now_ms >= wait[1]

    def note_failure(self, step: str, now_ms: int) -> None:
        """Pause for longer than before."""
        before = self._waits.get(step)
        count = 0 if before is None else before[0] + 1
        self._waits[step] = count, now_ms + self._pause_ms(count)

    def postpone(self, step: str, now_ms: int) -> None:
        """Make the first pause, without a failure."""
        self._waits[step] = 0, now_ms + self._pause_ms(0)

    def note_success(self, step: str) -> None:
        """Begin again."""
        self._waits.pop(step, None)

    def _pause_ms(self, count: int) -> int:
        return round(1000 * self._pauses.bound_s(count))
