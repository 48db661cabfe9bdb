"""What a repository must show, as dictionaries: the model that its simulation and its property tests compare it with.

Owns: states (what a branch shows or a commit holds), the algebra of them (difference, three-way merge, chosen paths,
listings), the history of one branch, and the ledger of commits. Invariants: a state is a dictionary from path to
encoded entry and is never changed; two entries are the same when their identities are; the model knows no token, no
range, no layer and no snapshot. Tests whose paths or contents are texts use the same algebra: short contents are their
own identities. Does not know: where states come from; `worlds.repo.monitor` learns them from
the stores themselves, and `worlds.repo.model_verbs` says what a verb may make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from lakebed.repo.committed.merge import Strategy
from lakebed.repo.model.entry import IDENTITY_BYTES, decode_entry
from lakebed.repo.model.model import Commit, DiffKind

State = Mapping[bytes, bytes]
"""path -> encoded entry."""

ListedLine = tuple[str, bytes | None]
"""One line of a listing: a path with its identity, or a common prefix with None."""


Text = TypeVar("Text", str, bytes)
Content = TypeVar("Content", str, bytes)
Node = TypeVar("Node")


def same(left: Content | None, right: Content | None) -> bool:
    """Whether two entries, or absences, are the same: where the bytes are does not matter."""
    if left is None or right is None:
        return left is right
    return left[:IDENTITY_BYTES] == right[:IDENTITY_BYTES]


def alike(left: Mapping[Text, Content], right: Mapping[Text, Content]) -> bool:
    """Whether two states have the same entries at the same paths."""
    return left.keys() == right.keys() and all(same(value, right[path]) for path, value in left.items())


def identified(state: State) -> dict[bytes, bytes]:
    """A state's identities, to be compared as they are."""
    return {path: value[:IDENTITY_BYTES] for path, value in state.items()}


def shown(state: State | None) -> str:
    """A state as a person reads it: the beginnings of identities, and of which upload each is."""
    if state is None:
        return "nothing, not even a branch"
    lines = (
        f"{path.decode()}={value[:3].hex()}@{decode_entry(value, where='a state').address[-6:]}"
        for path, value in sorted(state.items())
    )
    return "{" + ", ".join(lines) + "}"


def difference(left: Mapping[Text, Content], right: Mapping[Text, Content]) -> dict[Text, DiffKind]:
    """What happened to each path from left to right."""
    result: dict[Text, DiffKind] = {}
    for path in sorted(left.keys() | right.keys()):
        before, after = left.get(path), right.get(path)
        if not same(before, after):
            result[path] = DiffKind.ADDED if before is None else DiffKind.REMOVED if after is None else DiffKind.CHANGED
    return result


def applied(state: Mapping[Text, Content], changes: Mapping[Text, Content | None]) -> dict[Text, Content]:
    """A state after changes; None takes a path away."""
    after: dict[Text, Content | None] = {**state, **changes}
    return {path: value for path, value in after.items() if value is not None}


def below(state: Mapping[Text, Content], prefix: Text) -> dict[Text, Content]:
    """The part of a state whose paths begin so."""
    return {path: value for path, value in state.items() if path.startswith(prefix)}


def chosen(
    onto: Mapping[Text, Content], source: Mapping[Text, Content], is_chosen: Callable[[Text], bool]
) -> dict[Text, Content]:
    """A state whose chosen paths are as another one has them."""
    kept = {path: value for path, value in onto.items() if not is_chosen(path)}
    return kept | {path: value for path, value in source.items() if is_chosen(path)}


def merged(
    base: Mapping[Text, Content],
    source: Mapping[Text, Content],
    destination: Mapping[Text, Content],
    *,
    strategy: Strategy | None = None,
    prefix: Text | None = None,
) -> tuple[dict[Text, Content], list[Text]]:
    """The three-way merge, path by path; and the paths that both sides changed differently."""
    after: dict[Text, Content | None] = {}
    conflicts: list[Text] = []
    for path in sorted(base.keys() | source.keys() | destination.keys()):
        was, theirs, ours = base.get(path), source.get(path), destination.get(path)
        after[path] = ours
        if (prefix and not path.startswith(prefix)) or same(theirs, was) or same(theirs, ours):
            continue
        if same(ours, was):
            after[path] = theirs
            continue
        conflicts.append(path)
        if strategy == "source-wins":
            after[path] = theirs
    return applied({}, after), conflicts


def listing(state: State, *, prefix: bytes = b"", after: str = "", delimiter: str = "") -> list[ListedLine]:
    """What a listing of a state says, line by line."""
    lines: dict[str, bytes | None] = {}
    for path, value in sorted(state.items()):
        if not path.startswith(prefix):
            continue
        text = path.decode()
        at = text.find(delimiter, len(prefix.decode())) if delimiter else -1
        name = text if at < 0 else text[: at + len(delimiter)]
        is_folder = at >= 0
        # A folder that `after` lies in is listed when there is more of it behind `after`; one that it is, was before.
        if path <= after.encode() or name == after:
            continue
        lines.setdefault(name, None if is_folder else value[:IDENTITY_BYTES])
    return sorted(lines.items(), key=lambda line: line[0].encode())


@dataclass(frozen=True, slots=True)
class Moment:
    """What a branch was from one tick on."""

    tick: int
    head: str | None
    state: State | None
    """What it shows; None: the branch does not exist."""
    at_ms: int = 0
    begun_ms: int = 0
    """When the verb that made it so began; it may have slept for days since."""


@dataclass(eq=False, slots=True)
class History:
    """All moments of one branch name, oldest first; it begins without a branch."""

    name: str
    moments: list[Moment] = field(default_factory=lambda: [Moment(0, None, None)])
    cleared: list[tuple[int, bytes]] = field(default_factory=list)
    """When which prefix was deleted."""

    @property
    def now(self) -> Moment:
        """The newest."""
        return self.moments[-1]

    def since(self, tick: int) -> list[Moment]:
        """The moment that a tick met, and everything after it."""
        at = len(self.moments) - 1
        while at > 0 and self.moments[at].tick > tick:
            at -= 1
        return self.moments[at:]

    def was_written(self, path: bytes, *, since: Moment, until: Moment) -> bool:
        """Whether a path was anything else between two moments, or below a prefix that was deleted."""
        assert since.state is not None
        if any(since.tick < tick <= until.tick and path.startswith(prefix) for tick, prefix in self.cleared):
            return True
        then = since.state.get(path)
        meanwhile = (item for item in self.since(since.tick) if item.tick <= until.tick)
        return any(item.state is None or item.state.get(path) != then for item in meanwhile)

    def deletions(self) -> Iterator[tuple[Moment, Moment]]:
        """Each time the branch was deleted, newest first: the last moment with it, the first without."""
        for before, after in zip(self.moments[-2::-1], self.moments[:0:-1], strict=True):
            if before.state is not None and after.state is None:
                yield before, after


def ancestors(nodes: Iterable[Node], parents_of: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Commits and everything before them."""
    items: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        item = waiting.pop()
        if item not in items:
            items.add(item)
            waiting += parents_of(item)
    return items


def merge_bases(left: Node, right: Node, parents_of: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """The common ancestors that are ancestors of no other one."""
    ours, theirs = ancestors([left], parents_of), ancestors([right], parents_of)
    common = ours & theirs
    older = ancestors([parent for item in common for parent in parents_of(item)], parents_of)
    return common - older


@dataclass(eq=False, slots=True)
class Ledger:
    """Every commit that was ever made, and what it holds."""

    commits: dict[str, Commit] = field(default_factory=dict)
    contents: dict[str, State] = field(default_factory=dict)

    def content(self, id: str) -> State:
        """What a commit holds."""
        return self.contents[id]

    def ancestors(self, ids: Iterable[str]) -> set[str]:
        """Commits and everything before them."""
        return ancestors([item for item in ids if item in self.commits], self._parents)

    def _parents(self, id: str) -> list[str]:
        return [parent for parent in self.commits[id].parents if parent in self.commits]

    def merge_bases(self, left: str, right: str) -> list[str]:
        """The common ancestors that are ancestors of no other one."""
        if left not in self.commits or right not in self.commits:
            return []
        return sorted(merge_bases(left, right, self._parents))

    def own_commits(self, head: str, onto: str) -> list[str]:
        """What a head descends from and `onto` does not, without merges: parents before children, as git replays it."""
        ancestors = self.ancestors([head]) - self.ancestors([onto])
        plain = [id for id in ancestors if len(self.commits[id].parents) < 2]
        newest_first = sorted(plain, key=lambda id: (-self.commits[id].generation, -self.commits[id].created_at_ms, id))
        return newest_first[::-1]
