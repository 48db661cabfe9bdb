"""What processes of a simulated repository do: verbs drawn by weight, each announced to the monitor and judged.

Owns: `Process`, a context that one actor or the threads of one process share, with one method for each thing that users
do. Invariants: what a caller is told is judged when it is told; an unexpected error is raised; objects that are
uploaded are real, and what is read is compared with what was uploaded. Does not know: which processes call these
methods (`worlds.repo.actors`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from lakebed.errors import LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.repo.collect.collect import collect_garbage
from lakebed.repo.committed.merge import Strategy, as_strategy
from lakebed.repo.heads.compact import compact_once, run_compactor_once
from lakebed.repo.heads.importing import (
    Import,
    ImportSource,
    cancel_import,
    import_status,
    list_unfinished_imports,
    run_import,
)
from lakebed.repo.heads.write import delete, delete_prefix, stage, stage_if_absent, stage_many
from lakebed.repo.model.entry import IDENTITY_BYTES, encode_entry
from lakebed.repo.model.model import Entry
from lakebed.repo.model.options import DAY_MS, CollectionOptions
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch, delete_branch, undelete_branch
from lakebed.repo.references.tags import create_tag, delete_tag
from lakebed.repo.staging.cleanup import clean_once, clean_orphans_once
from lakebed.repo.staging.view import at_reference
from lakebed.repo.verbs.commit import Commit
from lakebed.repo.verbs.merge import Merge
from lakebed.repo.verbs.pick import CherryPick, Revert
from lakebed.repo.verbs.reading import ListObjects, StatMany
from lakebed.repo.verbs.rebase import Rebase
from lakebed.repo.verbs.reset import HardReset, Reset
from worlds.promise import PromiseBroken
from worlds.repo import head_verbs as judged
from worlds.repo.model import ListedLine, alike, difference, identified, listing, same, shown
from worlds.repo.model_verbs import (
    REFUSALS,
    BranchCreation,
    BranchDeletion,
    BranchReturn,
    Delete,
    DeletePrefix,
    JudgedVerb,
    Put,
    Tagging,
)
from worlds.repo.monitor import MonitoredKeyValue
from worlds.repo.operations import diff_refs, diff_uncommitted, start_import
from worlds.repo.world import REBASER, RepositoryWorld, check_body

R = TypeVar("R")

HeadVerb = Commit | Merge | CherryPick | Revert | Rebase | Reset | HardReset

_STRATEGIES: Final[Sequence[Strategy | None]] = (None, None, "source-wins", "dest-wins")
_PREFIXES: Final = ("a/", "a/b/", "b/", "")
_LONG: Final = ("list", "uncommitted", "read commit", "diff of commits")
"""Verbs that may be in the middle of something when a collection takes it."""


class Process:
    """One process with one home.

    Args:
        name: of its first actor; verbs and counts are by it.
        branches: what it works on.
    """

    def __init__(self, world: RepositoryWorld, name: str, *, branches: Sequence[str] = ("main",)) -> None:
        self.world = world
        self.name = name
        self.branches = branches
        self._key_value = MonitoredKeyValue(world.monitor)
        self._home = world.make_context(world.handle(self._key_value))

    # ---- the one way to call a verb

    def perform(self, verb: JudgedVerb, call: Callable[[RepositoryContext], R], *, goes_on: bool = False) -> R | None:
        """Announce a verb, call it, and judge what it says. None: it was refused, or its outcome is unknown.

        Args:
            goes_on: it is the next try of a verb that was announced before.
        """
        world, monitor = self.world, self.world.monitor
        monitor.history(verb.branch)
        if not goes_on:
            verb.started = world.tick()
            verb.started_ms = world.environment.clock.now_ms()
            world.pass_time(world.rng.randrange(world.jump_ms_max + 1))
        home = replace(self._home, key_value=world.handle(self._key_value.of(verb)))
        try:
            result = call(home)
        except OutcomeUnknown:
            world.counts[f"{verb.name}: unknown"] += 1
            return None
        except LakebedError as error:
            world.counts[f"error {error.kind}"] += 1
            if not (goes_on and isinstance(error, Unavailable)):  # of its first try that says nothing
                self._check_refusal(verb, error)
            return None
        world.counts[verb.name] += 1
        verb.acknowledged(result, monitor.known)
        verb.told = "done"
        return result

    def _check_refusal(self, verb: JudgedVerb, error: LakebedError) -> None:
        monitor = self.world.monitor
        if error.kind not in REFUSALS.get(type(error), ()):
            is_gone = isinstance(error, NotFound)
            if error.kind == "version_went":
                # A reader of many rows that takes longer than the collection's minimum age.
                is_gone = verb.name in _LONG and monitor.now_ms() - verb.started_ms >= monitor.grace_ms
            if not is_gone or not monitor.has_deleted_since(verb.started):
                raise error
        if verb.effect_count:
            raise PromiseBroken(f"{verb} was told {error.kind} ({error}), and has had its effect")
        verb.refused(error, monitor.known)
        verb.told = f"{error.kind}"

    def _verb(self, name: str, branch: str = "main") -> JudgedVerb:
        return JudgedVerb(name=name, branch=branch, by=self.name)

    def move(self, verb: HeadVerb) -> None:
        """Run a verb that moves a head; its own fields say how it is judged."""
        self.perform(self._judged(verb), verb.run)

    def _judged(self, verb: HeadVerb) -> judged.JudgedMove:
        call: dict[str, Any] = {"branch": verb.branch, "by": self.name}
        if isinstance(verb, Commit):
            prefixes = tuple(prefix.encode() for prefix in verb.prefixes or ())
            return judged.Commitment(name="commit of some" if prefixes else "commit", prefixes=prefixes, **call)
        if isinstance(verb, Reset):
            name = "reset" + (
                " of a path" if verb.path is not None else " of a prefix" if verb.prefix is not None else ""
            )
            path, prefix = (None if item is None else item.encode() for item in (verb.path, verb.prefix))
            return judged.Reset(name=name, path=path, prefix=prefix, **call)
        if isinstance(verb, HardReset):
            return judged.HardReset(name="hard reset", ref=verb.ref, force=verb.force, **call)
        call["strategy"] = as_strategy(verb.strategy)
        if isinstance(verb, Merge):
            call |= {"source": verb.source, "squash": verb.squash, "prefix": verb.prefix.encode()}
            return judged.Merging(name="merge", **call)
        if isinstance(verb, Rebase):
            return judged.Rebasing(name="rebase", onto=verb.onto, **call)
        undo = isinstance(verb, Revert)
        parent = self.world.monitor.ledger.commits[verb.ref].parents[(verb.parent_number or 1) - 1]
        name = "revert" if undo else "cherry-pick"
        return judged.Picking(name=name, commit=verb.ref, parent=parent, undo=undo, **call)

    # ---- what it draws

    def _branch(self, rng: random.Random) -> str:
        return rng.choice(self.branches)

    def _path(self, rng: random.Random) -> str:
        return rng.choice(self.world.paths)

    def _commit_id(self, rng: random.Random) -> str:
        """Some commit that was made, mostly a late one."""
        ids = list(self.world.monitor.ledger.commits)
        if rng.random() < 0.3:
            return rng.choice(ids)
        return ids[-1 - min(int(rng.expovariate(0.4)), len(ids) - 1)]

    def _reference(self, rng: random.Random) -> str:
        others = [name for name, history in self.world.monitor.histories.items() if history.now.state is not None]
        return rng.choice(sorted(others)) if others and rng.random() < 0.7 else self._commit_id(rng)

    def _linger(self, rng: random.Random) -> None:
        """Let other processes run first, so that there is something to do."""
        for _ in range(rng.randrange(60)):
            self.world.scheduler.switch("linger")

    def _upload(self, rng: random.Random) -> Entry | None:
        body = rng.choice(self.world.texts)
        entry = self.perform(self._verb("upload"), lambda home: data.upload(home, body))
        while rng.random() < self.world.dawdling:
            self.world.scheduler.switch("between upload and staging")
        return entry

    # ---- staging

    def put(self, rng: random.Random) -> None:
        """Upload and stage."""
        branch, path, entry = self._branch(rng), self._path(rng), self._upload(rng)
        if entry is not None:
            verb = Put(name="put", branch=branch, by=self.name, entries={path.encode(): encode_entry(entry)})
            self.perform(verb, lambda home: stage(home, branch=branch, path=path, entry=entry))

    def put_if_absent(self, rng: random.Random) -> None:
        """Upload and stage where nothing is; asked again, with the same address, until there is an answer."""
        branch, path, entry = self._branch(rng), self._path(rng), self._upload(rng)
        if entry is None:
            return
        verb = Put(
            name="put if absent",
            branch=branch,
            by=self.name,
            entries={path.encode(): encode_entry(entry)},
            only_if_absent=True,
        )
        for number in range(3):
            if number and rng.random() < 0.5:
                self.world.scheduler.switch("ask again later")
            self.perform(
                verb, lambda home: stage_if_absent(home, branch=branch, path=path, entry=entry), goes_on=number > 0
            )
            if verb.told is not None:
                return

    def put_many(self, rng: random.Random) -> None:
        """Upload and stage some at once."""
        branch = self._branch(rng)
        entries: list[tuple[str, Entry]] = []
        for path in rng.sample(self.world.paths, rng.randrange(2, 4)):
            entry = self._upload(rng)
            if entry is not None:
                entries.append((path, entry))
        if entries:
            values = {path.encode(): encode_entry(entry) for path, entry in entries}
            verb = Put(name="put many", branch=branch, by=self.name, entries=values)
            self.perform(verb, lambda home: stage_many(home, branch=branch, entries=entries))

    def delete(self, rng: random.Random) -> None:
        """Delete a path."""
        branch, path = self._branch(rng), self._path(rng)
        verb = Delete(name="delete", branch=branch, by=self.name, path=path.encode())
        self.perform(verb, lambda home: delete(home, branch=branch, path=path))

    def delete_prefix(self, rng: random.Random) -> None:
        """Delete all below a prefix."""
        branch, prefix = self._branch(rng), rng.choice(_PREFIXES)
        verb = DeletePrefix(name="delete prefix", branch=branch, by=self.name, prefix=prefix.encode())
        self.perform(verb, lambda home: delete_prefix(home, branch=branch, prefix=prefix))

    # ---- reading

    def get(self, rng: random.Random) -> None:
        """Read a path, and perhaps its bytes."""
        branch, path = self._branch(rng), self._path(rng)
        verb = self._verb("get", branch)

        def read(home: RepositoryContext) -> list[Entry | None]:
            return [StatMany(ref=branch, paths=[path]).run(home).get(path)]

        outcome = self.perform(verb, read)
        if outcome is None:
            return
        [entry] = outcome
        value, key = None if entry is None else encode_entry(entry), path.encode()
        verb.must_have_been(
            self.world.monitor.known,
            f"{path} is {entry}",
            lambda one: one.state is not None and same(one.state.get(key), value),
        )
        if entry is not None and rng.random() < 0.5:
            self._read_bytes(entry, path)

    def get_many(self, rng: random.Random) -> None:
        """Read every path at one moment."""
        branch, paths = self._branch(rng), sorted(self.world.paths)
        verb = self._verb("get many", branch)
        outcome = self.perform(verb, lambda home: StatMany(ref=branch, paths=paths).run(home))
        if outcome is not None:
            state = {path.encode(): encode_entry(entry) for path, entry in outcome.items()}
            verb.must_have_been(
                self.world.monitor.known,
                f"the branch is {shown(state)}",
                lambda one: (
                    one.state is not None
                    and all(same(one.state.get(path.encode()), state.get(path.encode())) for path in paths)
                ),
            )

    def _read_bytes(self, entry: Entry, path: str) -> None:
        verb = self._verb("read bytes")
        body = self.perform(verb, lambda home: bytes(data.read(home, entry)))
        if body is not None and "://" not in entry.address:
            check_body(body, entry, path)
        elif verb.told == "object_gone" and entry.address in self.world.monitor.paths:
            raise PromiseBroken(f"{entry.address} is said to be gone, and is there")

    def list(self, rng: random.Random) -> None:
        """List a branch, with a prefix, a delimiter, from a path on."""
        branch, prefix = self._branch(rng), rng.choice(("", "", *_PREFIXES))
        delimiter = rng.choice(("", "/"))
        after = rng.choice(("", "", *self.world.paths))
        amount = rng.choice((None, None, 2))
        verb = self._verb("list", branch)

        def read(home: RepositoryContext) -> list[ListedLine]:
            asked = ListObjects(ref=branch, prefix=prefix, after=after, delimiter=delimiter)
            return [
                (row.path, None if row.entry is None else encode_entry(row.entry)[:IDENTITY_BYTES])
                for row in asked.rows(home, amount=amount)
            ]

        outcome = self.perform(verb, read)
        if outcome is not None:
            verb.must_have_been(
                self.world.monitor.known,
                f"{prefix!r} after {after!r} lists {outcome}",
                lambda one: (
                    one.state is not None
                    and listing(one.state, prefix=prefix.encode(), after=after, delimiter=delimiter)[:amount] == outcome
                ),
            )

    def differ(self, rng: random.Random) -> None:
        """Read what is uncommitted."""
        branch = self._branch(rng)
        verb = self._verb("uncommitted", branch)

        def read(home: RepositoryContext) -> dict[bytes, Any]:
            return {entry.path.encode(): entry.kind for entry in diff_uncommitted(home, branch)}

        outcome = self.perform(verb, read)
        known = self.world.monitor.known
        if outcome is not None:
            verb.must_have_been(
                known,
                f"{outcome} is uncommitted",
                lambda one: (
                    one.state is not None and difference(known.ledger.content(one.head or ""), one.state) == outcome
                ),
            )

    def look_back(self, rng: random.Random) -> None:
        """Read a commit, and how it differs from another: they never change."""
        left, right = self._commit_id(rng), self._commit_id(rng)
        ledger = self.world.monitor.ledger

        def read(home: RepositoryContext) -> dict[bytes, bytes]:
            with at_reference(home, left) as view:
                return {
                    entry.path.encode(): encode_entry(entry.entry)[:IDENTITY_BYTES]
                    for entry in view.list()
                    if entry.entry is not None
                }

        outcome = self.perform(self._verb("read commit"), read)
        if outcome is not None and outcome != identified(ledger.content(left)):
            raise PromiseBroken(f"the commit {left} reads {outcome}")

        def compare(home: RepositoryContext) -> dict[bytes, Any]:
            return {entry.path.encode(): entry.kind for entry in diff_refs(home, left, right, kind="two_dot")}

        differs = self.perform(self._verb("diff of commits"), compare)
        if differs is not None and differs != difference(ledger.content(left), ledger.content(right)):
            raise PromiseBroken(f"{left} and {right} differ by {differs}")

    # ---- moving heads

    def commit(self, rng: random.Random) -> None:
        """Commit everything."""
        self.move(Commit(branch=self._branch(rng), message="all"))

    def commit_some(self, rng: random.Random) -> None:
        """Commit what is below a prefix."""
        self.move(Commit(branch=self._branch(rng), message="some", prefixes=[rng.choice(_PREFIXES[:3])]))

    def advance(self, rng: random.Random) -> None:
        """Stage something and commit it."""
        alone = copy(self)
        alone.branches = (self._branch(rng),)
        alone.put_many(rng)
        if rng.random() < 0.4:
            alone.delete(rng)
        alone.commit(rng)

    def _clean_branch(self, rng: random.Random) -> str:
        """A branch; what is staged on it is mostly committed first, for verbs that need a clean one."""
        branch = self._branch(rng)
        now = self.world.monitor.history(branch).now
        if now.state is not None and rng.random() < 0.8:
            head = self.world.monitor.ledger.content(now.head or "")
            if not alike(now.state, head):
                self.move(Commit(branch=branch, message="before"))
        return branch

    def _news(self, branch: str, rng: random.Random) -> str:
        """A reference, mostly of a branch that has commits which another one has not."""
        monitor = self.world.monitor
        known = monitor.ledger.ancestors([monitor.history(branch).now.head or ""])
        heads = {name: history.now.head for name, history in sorted(monitor.histories.items())}
        others = [name for name, head in heads.items() if head is not None and head not in known]
        return rng.choice(others) if others and rng.random() < 0.9 else self._reference(rng)

    def merge(self, rng: random.Random) -> None:
        """Merge some reference, in some way."""
        branch, strategy = self._clean_branch(rng), rng.choice(_STRATEGIES)
        source = self._news(branch, rng)
        squash, prefix = rng.random() < 0.25, rng.choice(("", "", "", "a/"))
        self.move(Merge(branch=branch, source=source, strategy=strategy, squash=squash, prefix=prefix))

    def reset(self, rng: random.Random) -> None:
        """Discard all that is uncommitted."""
        self.move(Reset(branch=self._branch(rng)))

    def reset_some(self, rng: random.Random) -> None:
        """Discard a path, or what is below a prefix."""
        branch, prefix, path = self._branch(rng), rng.choice(_PREFIXES), self._path(rng)
        self.move(Reset(branch=branch, path=path) if rng.random() < 0.5 else Reset(branch=branch, prefix=prefix))

    def hard_reset(self, rng: random.Random) -> None:
        """Move a branch to another commit."""
        branch, ref, force = self._branch(rng), self._reference(rng), rng.random() < 0.6
        self.move(HardReset(branch=branch, ref=ref, force=force))

    def pick(self, rng: random.Random) -> None:
        """Make a commit's changes again, or undo them."""
        branch, id, strategy = self._clean_branch(rng), self._commit_id(rng), rng.choice(_STRATEGIES)
        parents = self.world.monitor.ledger.commits[id].parents
        if parents:
            number, undo = rng.randrange(len(parents)), rng.random() < 0.5
            kind = Revert if undo else CherryPick
            self.move(kind(branch=branch, ref=id, parent_number=number + 1, strategy=strategy))

    def rebase(self, rng: random.Random) -> None:
        """Rebase a branch onto another reference."""
        branch, strategy = self._clean_branch(rng), rng.choice(_STRATEGIES)
        self.move(Rebase(branch=branch, onto=self._news(branch, rng), strategy=strategy, committer=REBASER))

    def import_objects(self, rng: random.Random) -> None:
        """Import a folder, or resume an import that another process has left."""
        left = self.perform(self._verb("unfinished imports"), list_unfinished_imports) or []
        if left and rng.random() < 0.5:
            self._run_import(rng.choice(left))
            return
        branch, destination, clears = self._branch(rng), rng.choice(("a/", "imported/")), rng.random() < 0.3
        sources = [ImportSource(self.world.import_url, destination)]
        message = f"import {self.name} {rng.getrandbits(32)}"
        asked = partial(start_import, branch=branch, sources=sources, message=message, replace=clears)
        id = self.perform(self._verb("start of an import"), asked)
        record = None if id is None else self.perform(self._verb("import status"), partial(import_status, id=id))
        if record is not None:
            self._run_import(record)

    def _run_import(self, record: Import) -> None:
        destination = record.sources[0].destination
        imported = self.world.imported.items()
        verb = judged.Importing(
            name="import",
            branch=record.branch,
            by=self.name,
            id=record.id,
            entries={f"{destination}{path}".encode(): encode_entry(entry) for path, entry in imported},
            cleared=destination.encode() if record.replace else None,
        )
        self.perform(verb, lambda home: run_import(home, record.id))

    def cancel_import(self, rng: random.Random) -> None:
        """Cancel an import that another process runs."""
        for _ in range(60):
            left = self.perform(self._verb("unfinished imports"), list_unfinished_imports)
            if left:
                stop = partial(cancel_import, id=rng.choice(left).id)
                cancelled = self.perform(self._verb("cancellation"), stop)
                if cancelled is not None:
                    self.world.monitor.known.cancelled.add(cancelled.id)
                return
            self.world.scheduler.switch("nothing to cancel")

    # ---- branches and tags

    def create_branch(self, rng: random.Random) -> None:
        """Make a branch of some reference."""
        self._create_branch(self._branch(rng), self._reference(rng))

    def branch_anywhere(self, rng: random.Random) -> None:
        """Make a branch of any commit that ever was."""
        self._create_branch(self._branch(rng), rng.choice(list(self.world.monitor.ledger.commits)))

    def _create_branch(self, branch: str, source: str) -> None:
        verb = BranchCreation(name="create branch", branch=branch, by=self.name, source=source)
        self.perform(verb, lambda home: create_branch(home, branch, source=source))

    def delete_branch(self, rng: random.Random) -> None:
        """Delete a branch with all that is staged on it."""
        branch = self._branch(rng)
        verb = BranchDeletion(name="delete branch", branch=branch, by=self.name)
        self.perform(verb, lambda home: delete_branch(home, branch))

    def undelete_branch(self, rng: random.Random) -> None:
        """Bring a deleted branch back."""
        branch = self._branch(rng)
        verb = BranchReturn(name="undelete branch", branch=branch, by=self.name)
        self.perform(verb, lambda home: undelete_branch(home, branch))

    def tag(self, rng: random.Random) -> None:
        """Make a tag, or delete one."""
        tag = rng.choice(("t1", "t2"))
        if rng.random() < 0.4:
            verb = Tagging(name="delete tag", branch="main", by=self.name, tag=tag, commit=None)
            self.perform(verb, lambda home: delete_tag(home, tag))
            return
        id = self._commit_id(rng)
        verb = Tagging(name="tag", branch="main", by=self.name, tag=tag, commit=id)
        self.perform(verb, lambda home: create_tag(home, tag, commit_id=id))

    # ---- maintenance

    def compact(self, rng: random.Random) -> None:
        """Compact what is staged, whatever the sensor says."""
        self._linger(rng)
        self.compact_now(rng)

    def compact_now(self, rng: random.Random) -> None:
        """The same at once."""
        branch = self._branch(rng)
        done = self.perform(self._verb("compaction", branch), lambda home: compact_once(home, branch, force=True))
        if done is not None:
            self.world.counts[f"compaction {done.outcome}"] += 1

    def sense(self, rng: random.Random) -> None:
        """Compact what the sensor wants compacted."""
        self._linger(rng)
        for done in self.perform(self._verb("compactor"), run_compactor_once) or ():
            self.world.counts[f"sensed compaction {done.outcome}"] += 1

    def clean(self, rng: random.Random) -> None:
        """Remove rows of dropped tokens, and of orphans."""
        self._linger(rng)
        self.sweep(rng)
        if rng.random() < 0.3:
            self.perform(self._verb("cleanup of orphans"), clean_orphans_once)

    def sweep(self, rng: random.Random) -> None:
        """Remove rows of dropped tokens at once."""
        count = rng.choice((1, 2, 100))
        cleaned = self.perform(self._verb("cleanup"), lambda home: clean_once(home, row_count_max=count))
        if cleaned is not None:
            self.world.counts["rows cleaned"] += cleaned.row_count

    def collect(self, rng: random.Random) -> None:
        """Collect garbage."""
        self._linger(rng)
        options = CollectionOptions(grace=timedelta(milliseconds=self.world.grace_ms))
        report = self.perform(self._verb("collection"), lambda home: collect_garbage(home, options=options))
        if report is not None:
            self.world.counts["collected on the way"] += report.deleted_count

    def doze(self, rng: random.Random) -> None:
        """Let some of a minimum age pass."""
        self.world.pass_time(rng.randrange(self.world.grace_ms + 2))

    def sleep(self, rng: random.Random) -> None:
        """Let hours or days pass."""
        self.world.pass_time(rng.choice((DAY_MS // 24, DAY_MS, 2 * DAY_MS)))
        self.world.counts["days passed"] += 1


def _identity(entry: Entry) -> bytes:
    return encode_entry(entry)[:IDENTITY_BYTES]
