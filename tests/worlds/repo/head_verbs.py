"""The verbs of a repository that move heads, judged: seal, work on what is sealed, publish.

Owns: `JudgedMove`, and one class for each kind of them. A move rests on one moment of its branch, that of its seal;
what was written since stays on top of its result. Invariants: as of `worlds.repo.model_verbs`; what a new head holds is
what the dictionary model says, for one moment at which the branch was as the verb needs it. Does not know: how a verb
is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lakebed.errors import LakebedError
from lakebed.repo.committed.merge import Strategy
from worlds.promise import PromiseBroken
from worlds.repo.model import History, Moment, State, alike, applied, below, chosen, merged, same
from worlds.repo.model_verbs import Change, JudgedVerb, Known

MERGE_SOURCE_KEY: Final = ".lakebed.merge.source"
"""Where a commit of a merge with one parent says what was merged."""


class Target(NamedTuple):
    """The result of a move if it was sealed at some moment."""

    state: State
    """What the branch shows, if nothing is written after the seal."""
    head: State | None = None
    """What the new head holds; None: the head stays."""


@dataclass(eq=False, kw_only=True)
class JudgedMove(JudgedVerb):
    """A verb that seals, works on what is sealed, and publishes."""

    def targets(self, moment: Moment, after: Moment, known: Known) -> Iterator[Target]:
        """What it may come to if it was sealed at this moment; nothing when it had to be refused."""
        raise NotImplementedError

    def explains(self, change: Change) -> bool:
        """The change is the result for some moment of the call, and what was written since stays."""
        before, after = change.before, change.after
        if before.state is None or after.state is None:
            return False
        for moment in self.moments(change.known):
            if moment.state is None or moment.head != before.head:
                continue
            for target in self.targets(moment, after, change.known):
                if (target.head is None) != (after.head == before.head):
                    continue
                if target.head is not None and not alike(change.known.ledger.content(after.head or ""), target.head):
                    continue
                if _lands(target.state, moment, before, after, change.history):
                    return True
        return False

    def is_clean(self, moment: Moment, known: Known) -> bool:
        """Whether nothing was uncommitted at a moment."""
        return moment.state is not None and alike(moment.state, known.ledger.content(moment.head or ""))

    def acknowledged(self, result: Any, known: Known) -> None:
        """The new head is the one it was told; another call may have made the same commit in the same millisecond."""
        heads = [moment.head for moment in self.moments(known)]
        if result.id not in heads[1:]:
            self.must_have_happened()
        if result.id not in heads:
            raise PromiseBroken(f"{self} was told the head {result.id}, which the branch never had")

    def is_done(self, now: Moment, known: Known, target: Callable[[Moment], State]) -> bool:
        """Whether a moment is as if it had just been done: all is as it should be, or was written since some seal."""
        history = known.histories[self.branch]
        return now.state is not None and any(
            _lands(target(then), then, now, now, history)
            for then in self.moments(known)
            if then.state is not None and then.tick <= now.tick and then.head == now.head
        )

    def refused(self, error: LakebedError, known: Known) -> None:
        """The branch was dirty, or the paths were in conflict, at some moment."""
        if error.kind == "dirty_branch":
            self.must_have_been(known, "dirty", lambda one: one.state is not None and not self.is_clean(one, known))
        elif error.kind == "no_changes":
            self.must_have_been(known, "no changes", lambda one: self.changes_nothing(one, known))
        elif error.kind == "merge_conflict":
            paths = error.facts["paths"]
            self.must_have_been(
                known,
                f"conflicts at {paths}",
                lambda one: any(
                    [path.decode() for path in conflict] == paths for conflict in self.conflicts(one, known)
                ),
            )
        elif error.kind == "commit_expired" and not known.ever_expired:
            raise PromiseBroken(f"{self} was told of an expired commit, and none ever was")

    def changes_nothing(self, moment: Moment, known: Known) -> bool:
        """Whether there would be nothing to do."""
        return False

    def conflicts(self, moment: Moment, known: Known) -> Iterator[list[bytes]]:
        """The conflicts that it may have met at a moment."""
        return iter(())


def _lands(target: State, moment: Moment, before: Moment, after: Moment, history: History) -> bool:
    """Whether the state after a move is its target, but for what was written between a moment and the move."""
    assert moment.state is not None
    assert before.state is not None
    assert after.state is not None
    for path in target.keys() | after.state.keys() | before.state.keys():
        got, wanted, now = after.state.get(path), target.get(path), before.state.get(path)
        if not history.was_written(path, since=moment, until=before):
            if not same(got, wanted):
                return False
        elif same(now, moment.state.get(path)):
            # Written and taken back, or deleted with its prefix: whether a row of that is left is not promised.
            if not same(got, wanted) and not same(got, now):
                return False
        elif not same(got, now):
            return False
    return True


@dataclass(eq=False, kw_only=True)
class Commitment(JudgedMove):
    """A commit: of everything, or of chosen paths."""

    prefixes: tuple[bytes, ...] = ()

    def targets(self, moment: Moment, after: Moment, known: Known) -> Iterator[Target]:
        """The new head holds what was shown; what is shown stays."""
        if moment.state is not None and not self.changes_nothing(moment, known):
            commit = known.ledger.commits[after.head or ""]
            if after.head == moment.head or commit.parents == (moment.head,):
                yield Target(moment.state, self._held(moment, known))

    def _held(self, moment: Moment, known: Known) -> State:
        assert moment.state is not None
        if not self.prefixes:
            return moment.state
        return chosen(
            known.ledger.content(moment.head or ""), moment.state, lambda path: path.startswith(self.prefixes)
        )

    def changes_nothing(self, moment: Moment, known: Known) -> bool:
        """Whether the new commit would hold what the head holds."""
        if moment.state is None:
            return False
        return alike(self._held(moment, known), known.ledger.content(moment.head or ""))


@dataclass(eq=False, kw_only=True)
class Reset(JudgedMove):
    """What is uncommitted is given up, all of it or below a prefix."""

    prefix: bytes | None = None
    path: bytes | None = None

    @property
    def may_repeat(self) -> bool:
        """Of some paths: what is staged there meanwhile goes too."""
        return self.prefix is not None or self.path is not None

    def targets(self, moment: Moment, after: Moment, known: Known) -> Iterator[Target]:
        """The head's content, where it is meant."""
        yield Target(self._left(moment, known))

    def _left(self, moment: Moment, known: Known) -> State:
        assert moment.state is not None
        return chosen(moment.state, known.ledger.content(moment.head or ""), self._is_meant)

    def _is_meant(self, path: bytes) -> bool:
        return path == self.path if self.path is not None else path.startswith(self.prefix or b"")

    def acknowledged(self, result: Any, known: Known) -> None:
        """It did it, or at some moment everything to be reset was as the head has it, or overwritten since its seal."""
        if not self.effect_count:
            self.must_have_been(
                known, "reset", lambda now: self.is_done(now, known, lambda one: self._left(one, known))
            )


@dataclass(eq=False, kw_only=True)
class HardReset(JudgedMove):
    """A branch goes to another commit."""

    ref: str
    force: bool = False

    def targets(self, moment: Moment, after: Moment, known: Known) -> Iterator[Target]:
        """What the commit holds."""
        assert after.head is not None
        if after.head in known.meanings(self.ref, self.started) and (self.force or self.is_clean(moment, known)):
            content = known.ledger.content(after.head)
            yield Target(content, None if after.head == moment.head else content)

    def acknowledged(self, result: Any, known: Known) -> None:
        """It is there, or was at some moment with nothing but what was written since."""
        if not self.effect_count:
            content = known.ledger.content(result.id)
            self.must_have_been(
                known,
                "at that commit",
                lambda now: now.head == result.id and self.is_done(now, known, lambda one: content),
            )


@dataclass(eq=False, kw_only=True)
class Merging(JudgedMove):
    """A merge of a reference."""

    source: str
    strategy: Strategy | None = None
    squash: bool = False
    prefix: bytes = b""

    def targets(self, moment: Moment, after: Moment, known: Known) -> Iterator[Target]:
        """The three-way merge, with whichever best common ancestor."""
        commit = known.ledger.commits[after.head or ""]
        is_whole = not self.squash and not self.prefix
        source = commit.parents[-1] if is_whole else commit.metadata.get(MERGE_SOURCE_KEY, "")
        parents = (moment.head, source) if is_whole else (moment.head,)
        if source not in known.meanings(self.source, self.started) or commit.parents != parents:
            return
        if not self.is_clean(moment, known):
            return
        for state, conflicts in self._outcomes(moment, known, source):
            if self.strategy is not None or not conflicts:
                yield Target(state, state)

    def _outcomes(self, moment: Moment, known: Known, source: str) -> Iterator[tuple[State, list[bytes]]]:
        content = known.ledger.content
        for base in known.ledger.merge_bases(source, moment.head or ""):
            yield merged(
                content(base),
                content(source),
                content(moment.head or ""),
                strategy=self.strategy,
                prefix=self.prefix,
            )

    def changes_nothing(self, moment: Moment, known: Known) -> bool:
        """Whether the source is in the branch, or brings nothing."""
        if moment.head is None:
            return False
        for source in known.meanings(self.source, self.started):
            if known.ledger.merge_bases(source, moment.head) == [source]:
                return True
            for state, _ in self._outcomes(moment, known, source):
                if (self.squash or self.prefix) and alike(state, known.ledger.content(moment.head)):
                    return True
        return False

    def conflicts(self, moment: Moment, known: Known) -> Iterator[list[bytes]]:
        """Of every source that it may have meant."""
        if moment.head is None or not self.is_clean(moment, known):
            return
        for source in known.meanings(self.source, self.started):
            for _, conflicts in self._outcomes(moment, known, source):
                if conflicts:
                    yield conflicts


@dataclass(eq=False, kw_only=True)
class Picking(JudgedMove):
    """A commit's changes, made again or undone."""

    commit: str
    parent: str
    undo: bool = False
    strategy: Strategy | None = None

    def targets(self, moment: Moment, after: Moment, known: Known) -> Iterator[Target]:
        """The three-way merge between the commit and its parent."""
        if self.is_clean(moment, known) and known.ledger.commits[after.head or ""].parents == (moment.head,):
            state, conflicts = self._outcome(moment, known)
            if self.strategy is not None or not conflicts:
                yield Target(state, state)

    def _outcome(self, moment: Moment, known: Known) -> tuple[State, list[bytes]]:
        item, other = known.ledger.content(self.parent), known.ledger.content(self.commit)
        base, source = (other, item) if self.undo else (item, other)
        return merged(base, source, known.ledger.content(moment.head or ""), strategy=self.strategy)

    def changes_nothing(self, moment: Moment, known: Known) -> bool:
        """Whether the branch has it already."""
        if moment.head is None:
            return False
        return alike(self._outcome(moment, known)[0], known.ledger.content(moment.head))

    def conflicts(self, moment: Moment, known: Known) -> Iterator[list[bytes]]:
        """Paths that the branch has changed too."""
        if moment.head is not None:
            yield self._outcome(moment, known)[1]


@dataclass(eq=False, kw_only=True)
class Rebasing(JudgedMove):
    """The branch's own commits, made again on another reference."""

    onto: str
    strategy: Strategy | None = None

    def targets(self, moment: Moment, after: Moment, known: Known) -> Iterator[Target]:
        """One three-way merge after another."""
        if not self.is_clean(moment, known):
            return
        for state, conflicts in self._outcomes(moment, known):
            if self.strategy is not None or not conflicts:
                yield Target(state, state)

    def _outcomes(self, moment: Moment, known: Known) -> Iterator[tuple[State, list[bytes]]]:
        ledger = known.ledger
        for onto in known.meanings(self.onto, self.started):
            if not ledger.merge_bases(onto, moment.head or ""):
                continue
            state, result = ledger.content(onto), list[bytes]()
            for own_commit in ledger.own_commits(moment.head or "", onto):
                parents = ledger.commits[own_commit].parents
                was = ledger.content(parents[0]) if parents else {}
                after, conflicts = merged(was, ledger.content(own_commit), state, strategy=self.strategy)
                if conflicts and self.strategy is None:
                    result = conflicts
                    break
                state = after
            yield state, result

    def acknowledged(self, result: Any, known: Known) -> None:
        """The branch was at the new head."""
        self.must_have_been(known, f"rebased to {result.id}", lambda one: one.head == result.id)

    def changes_nothing(self, moment: Moment, known: Known) -> bool:
        """Whether the branch descends from it."""
        metas = known.meanings(self.onto, self.started)
        return any(known.ledger.merge_bases(onto, moment.head or "") == [onto] for onto in metas)

    def conflicts(self, moment: Moment, known: Known) -> Iterator[list[bytes]]:
        """Of the first commit that meets one."""
        if moment.head is not None:
            for _, result in self._outcomes(moment, known):
                yield result


@dataclass(eq=False, kw_only=True)
class Importing(JudgedMove):
    """Objects of another place become entries, in one commit."""

    id: str
    entries: State
    cleared: bytes | None = None

    def targets(self, moment: Moment, after: Moment, known: Known) -> Iterator[Target]:
        """The head's content under what was imported; nothing when it was cancelled."""
        if (
            self.id not in known.cancelled
            and self.is_clean(moment, known)
            and known.ledger.commits[after.head or ""].parents == (moment.head,)
        ):
            head = known.ledger.content(moment.head or "")
            if self.cleared is not None:
                head = applied(head, dict.fromkeys(below(head, self.cleared)))
            state = applied(head, self.entries)
            yield Target(state, state)

    def acknowledged(self, result: Any, known: Known) -> None:
        """It is completed, by any process, or it ended otherwise."""
        made = {moment.head for moment in known.histories[self.branch].moments}
        if result.state == "completed" and result.commit_id not in made:
            raise PromiseBroken(f"{self} says it made {result.commit_id}, which the branch never had")

    def refused(self, error: LakebedError, known: Known) -> None:
        """A dirty branch."""
        if error.kind != "no_changes":
            super().refused(error, known)
