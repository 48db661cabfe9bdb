"""What each verb of a repository may do, and what its caller may be told: judged in states, moments and commits.

Owns: `JudgedVerb` and one class for each kind of them. A verb that is under way explains a change of its branch or does
not; what its caller is told in the end is true of some moment of its time, or not. Invariants: a verb has its effect at
most once; after a refusal never; when it is acknowledged, it had it (or nothing had to be done at some moment of its
time). A verb whose caller was told nothing, because it crashed or the outcome is unknown, may have its effect at any
later time. Does not know: how a verb is made, nor any layer of a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.repo.model.entry import decode_entry
from worlds.promise import PromiseBroken
from worlds.repo.model import (
    History,
    Ledger,
    Moment,
    alike,
    applied,
    below,
    shown,
)


class Known(NamedTuple):
    """What a verb is judged by."""

    ledger: Ledger
    histories: Mapping[str, History]
    tags: Mapping[str, list[tuple[int, str | None]]]
    """Name -> from which tick on it named which commit."""
    ever_expired: set[str]
    cancelled: set[str]
    """Imports whose cancellation was acknowledged."""

    def meanings(self, reference: str, since: int) -> set[str]:
        """Commits that a reference may have led to since a tick."""
        items: set[str] = set()
        if reference in self.histories:
            items |= {item.head for item in self.histories[reference].since(since) if item.head is not None}
        named = self.tags.get(reference, [])
        ends = [tick for tick, _ in named[1:]]
        items |= {id for (_, id), end in zip(named, [*ends, 1 << 60], strict=False) if id is not None and end > since}
        if reference in self.ledger.commits:
            items.add(reference)
        return items


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one branch."""

    known: Known
    history: History
    after: Moment

    @property
    def before(self) -> Moment:
        """The newest moment so far."""
        return self.history.now


@dataclass(eq=False, kw_only=True)
class JudgedVerb:
    """One call of a verb: what was asked, when it began, what came of it. Alone it is one that changes nothing.

    Attributes:
        name: of the verb, for counts and messages.
        branch: which it is about.
        by: who called.
        started: the tick of its begin.
        started_ms: the time of it.
        effect_count: how often it had its effect.
        told: what its caller was told; None: nothing yet, or nothing at all.
    """

    name: str
    branch: str
    by: str
    started: int = 0
    started_ms: int = 0
    effect_count: int = 0
    told: str | None = None

    may_be_staged: ClassVar[bool] = False
    """Whether it writes staged rows."""

    @property
    def may_repeat(self) -> bool:
        """Whether it may have its effect several times."""
        return False

    def __str__(self) -> str:
        return f"{self.name} on {self.branch} by {self.by}"

    def explains(self, change: Change) -> bool:
        """Whether a change is the effect of this verb."""
        return False

    def acknowledged(self, result: Any, known: Known) -> None:
        """Judge a result. Raises `PromiseBroken`."""

    def refused(self, error: LakebedError, known: Known) -> None:
        """Judge an error that is part of life. Raises `PromiseBroken`."""

    # ---- words for those that follow

    def moments(self, known: Known) -> list[Moment]:
        """Everything its branch was since it began."""
        return known.histories[self.branch].since(self.started)

    def must_have_happened(self) -> None:
        """Raise unless it had its effect."""
        if not self.effect_count:
            raise PromiseBroken(f"{self} was acknowledged and has no effect")

    def must_have_been(self, known: Known, what: str, is_so: Callable[[Moment], bool]) -> None:
        """Raise unless something held at some moment of its time."""
        if not any(is_so(moment) for moment in self.moments(known)):
            states = "; ".join(shown(moment.state) for moment in self.moments(known)[-4:])
            raise PromiseBroken(f"{self} was told: {what}, which never was so: {states}")


# ---- staging


@dataclass(eq=False, kw_only=True)
class Put(JudgedVerb):
    """Entries for paths, in one change; perhaps only where nothing is."""

    entries: Mapping[bytes, bytes]
    only_if_absent: bool = False

    may_be_staged: ClassVar[bool] = True

    def explains(self, change: Change) -> bool:
        """Every path has its entry, and no other has changed; none was there if it had to be absent."""
        before, after = change.before.state, change.after.state
        if before is None or after is None or change.before.head != change.after.head:
            return False
        if self.only_if_absent and any(path in before for path in self.entries):
            return False
        return after == applied(before, self.entries)

    def acknowledged(self, result: Any, known: Known) -> None:
        """It is there; a conditional one may have found itself there."""
        self.must_have_happened()

    def refused(self, error: LakebedError, known: Known) -> None:
        """Another entry was there."""
        if isinstance(error, AlreadyExists):
            self.must_have_been(known, "already there", self._met_another)

    def _met_another(self, moment: Moment) -> bool:
        state = moment.state or {}
        return any(path in state and _address(state[path]) != _address(value) for path, value in self.entries.items())


def _address(value: bytes) -> str:
    return decode_entry(value, where="an entry of the model").address


@dataclass(eq=False, kw_only=True)
class Delete(JudgedVerb):
    """A path is deleted."""

    path: bytes

    may_be_staged: ClassVar[bool] = True

    def explains(self, change: Change) -> bool:
        """The path is gone, and nothing else."""
        before, after = change.before.state, change.after.state
        if before is None or after is None or change.before.head != change.after.head or self.path not in before:
            return False
        return after == applied(before, {self.path: None})

    def acknowledged(self, result: Any, known: Known) -> None:
        """It was there, and this or another call deleted it; or it was not there."""
        if result:
            self.must_have_been(known, "there", lambda one: self.path in (one.state or {}))
        if not result or not self.effect_count:
            self.must_have_been(
                known, "nothing there", lambda one: one.state is not None and self.path not in one.state
            )


@dataclass(eq=False, kw_only=True)
class DeletePrefix(JudgedVerb):
    """Everything below a prefix is deleted."""

    prefix: bytes

    def explains(self, change: Change) -> bool:
        """All below is gone, and nothing else."""
        before, after = change.before.state, change.after.state
        if before is None or after is None or change.before.head != change.after.head or not below(before, self.prefix):
            return False
        return after == applied(before, dict.fromkeys(below(before, self.prefix)))

    def acknowledged(self, result: Any, known: Known) -> None:
        """As `Delete`."""
        if result:
            self.must_have_been(known, "there", lambda one: bool(below(one.state or {}, self.prefix)))
        if not result or not self.effect_count:
            self.must_have_been(
                known, "nothing there", lambda one: one.state is not None and not below(one.state, self.prefix)
            )


# ---- branches and tags


@dataclass(eq=False, kw_only=True)
class BranchCreation(JudgedVerb):
    """A new branch at a reference."""

    source: str

    def explains(self, change: Change) -> bool:
        """It was not there, and begins as the commit."""
        after = change.after
        if change.before.state is not None or after.head is None or after.state is None:
            return False
        is_meant = after.head in change.known.meanings(self.source, self.started)
        return is_meant and alike(after.state, change.known.ledger.content(after.head))

    def acknowledged(self, result: Any, known: Known) -> None:
        """It was made."""
        self.must_have_happened()

    def refused(self, error: LakebedError, known: Known) -> None:
        """It was there."""
        if error.kind == "branch_exists":
            self.must_have_been(known, "there already", lambda one: one.state is not None)


@dataclass(eq=False, kw_only=True)
class BranchDeletion(JudgedVerb):
    """A branch goes, with what is staged on it."""

    def explains(self, change: Change) -> bool:
        """It was there and is not."""
        return change.before.state is not None and change.after.state is None

    def acknowledged(self, result: Any, known: Known) -> None:
        """It went."""
        self.must_have_happened()

    def refused(self, error: LakebedError, known: Known) -> None:
        """It was not there."""
        if error.kind == "branch_not_found":
            self.must_have_been(known, "no branch", lambda one: one.state is None)


@dataclass(eq=False, kw_only=True)
class BranchReturn(BranchCreation):
    """A deleted branch comes back with its last head."""

    source: str = ""

    def explains(self, change: Change) -> bool:
        """It has the head it had when it was deleted; deletions of one millisecond have no order."""
        after = change.after
        if change.before.state is not None or after.head is None or after.state is None:
            return False
        at_ms: int | None = None
        for last, gone in change.history.deletions():
            # The line was written somewhat before it took effect, and the log read somewhat before that.
            if at_ms is not None and gone.tick < self.started and gone.at_ms < at_ms:
                break
            if gone.tick < self.started and at_ms is None:
                at_ms = gone.at_ms
            if last.head == after.head:
                return alike(after.state, change.known.ledger.content(after.head))
        return False


@dataclass(eq=False, kw_only=True)
class Tagging(JudgedVerb):
    """A tag is made, or with no commit deleted."""

    tag: str
    commit: str | None

    def acknowledged(self, result: Any, known: Known) -> None:
        """It was made, or went."""
        self.must_have_happened()

    def refused(self, error: LakebedError, known: Known) -> None:
        """It was there, or was not."""
        named = [id for tick, id in known.tags.get(self.tag, [(0, None)])]
        if error.kind == "tag_exists" and not any(id is not None for id in named):
            raise PromiseBroken(f"{self} was told that the tag is there, and it never was")


REFUSALS: Final[Mapping[type[LakebedError], Sequence[str]]] = {
    AlreadyExists: ("path_exists", "branch_exists", "tag_exists"),
    Conflict: ("branch_moved", "upload_expired", "merge_conflict", "import_ended", "import_busy", "tag_moved"),
    InvalidRequest: (
        "dirty_branch",
        "no_changes",
        "commit_expired",
        "default_branch",
        "invalid_parent_number",
        "upload_not_found",
        "unrelated_histories",
    ),
    NotFound: (
        "branch_not_found",
        "reference_not_found",
        "commit_not_found",
        "branch_not_deleted",
        "tag_not_found",
        "object_gone",
    ),
    Unavailable: ("unavailable",),
}
"""Errors that are part of life: after each of them nothing has happened, and nothing will."""
