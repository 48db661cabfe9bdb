"""Which files no version needs, against the files that each version of a random history has."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakebed.table.branch.branch_folder import with_fork_point
from lakebed.table.branch.candidates import UNKNOWN, Role, candidates_of, concat
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.collect.live_versions import LiveVersions, read_live_versions
from lakebed.table.collect.reachability import Judgement, judge, judge_each, names_in_use
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.model.model import BucketChange
from lakebed.table.rows.rows import commit_changes
from worlds.table.made_up import data_file


@dataclass
class History:
    """A table whose versions are known: the births of the files of each, and the last death of each file."""

    bench: Any
    rng: random.Random
    births: dict[str, int] = field(default_factory=dict)
    """Of the live files."""
    versions: dict[int, dict[str, int]] = field(default_factory=dict)
    lives: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Birth and last death of each file that is not live."""
    held: list[int] = field(default_factory=list)
    """Versions that were not forgotten."""

    def commit(self) -> None:
        """One file more, and up to two less."""
        gone = self.rng.sample(sorted(self.births), min(len(self.births), self.rng.randrange(3)))
        newest = max(self.versions, default=0) + 1
        deleted = tuple(data_file(name, commit_snapshot=self.births[name]) for name in gone)
        change = BucketChange(EMPTY_ROW, 0, -1, (data_file(f"f{newest}"),), deleted)
        self.bench.clock.advance(1)
        self.bench.store.put(f"bucket-0/f{newest}", b"x")
        assert commit_changes(self.bench.table.context, [change]).id == newest
        births = {name: born for name, born in self.births.items() if name not in gone} | {f"f{newest}": newest}
        self.note(newest, births)

    def roll_back(self) -> None:
        """An older version is the newest again."""
        target = self.rng.choice(sorted(self.versions))
        self.bench.clock.advance(1)
        self.bench.table.rollback_to_as_latest(target)
        newest = self.bench.table.latest().id
        if newest not in self.versions:
            self.note(newest, self.versions[target])

    def note(self, newest: int, births: dict[str, int]) -> None:
        for name, born in self.births.items():
            if name not in births:
                self.lives[name] = (born, newest)
        for name in births:
            self.lives.pop(name, None)
        self.births = dict(births)
        self.versions[newest] = dict(births)

    def forget(self) -> set[str]:
        """Some versions keep a tag, some lose their snapshot; returns the paths of the files that the others have."""
        ids = sorted(self.versions)
        tagged = [snapshot_id for snapshot_id in ids if self.rng.random() < 0.25]
        for snapshot_id in tagged:
            self.bench.table.create_tag(f"t{snapshot_id}", snapshot_id=snapshot_id)
        hidden = [snapshot_id for snapshot_id in ids[:-1] if self.rng.random() < 0.6]
        self.bench.store.delete([f"snapshot/snapshot-{snapshot_id}" for snapshot_id in hidden])
        self.held = [snapshot_id for snapshot_id in ids if snapshot_id in tagged or snapshot_id not in hidden]
        return {f"bucket-0/{name}" for snapshot_id in self.held for name in self.versions[snapshot_id]}

    def with_holes(self, candidates: pa.Table) -> set[str]:
        """Files of known birth with a version in their life, which may be one that a rollback left them out of."""
        lives = zip(*(candidates[name].to_pylist() for name in ("path", "born", "dead")), strict=True)
        return {
            path
            for path, born, dead in lives
            if born != UNKNOWN and any(born <= snapshot_id < dead for snapshot_id in self.held)
        }

    def candidates(self, *, unknown_share: float) -> pa.Table:
        """Every file that died, whose birth is known or not."""
        rows = [
            (f"bucket-0/{name}", UNKNOWN if self.rng.random() < unknown_share else born, dead)
            for name, (born, dead) in self.lives.items()
        ]
        paths, born, dead = ([row[place] for row in rows] for place in range(3))
        return candidates_of(Role.DATA, paths, size_bytes=1, born=np.array(born), dead=np.array(dead))

    def judge(self, candidates: pa.Table, *, walk_end: int | None = None, **rules: bool) -> Judgement:
        context = self.bench.table.context
        PROCESS_CACHE.clear()
        judgement = judge(
            candidates,
            branch=context,
            versions=read_live_versions(context),
            referenced=ReferencedFiles(context),
            walk_end=max(self.versions) if walk_end is None else walk_end,
            **rules,
        )
        assert judgement.deletable.num_rows + sum(judgement.kept.values()) == candidates.num_rows
        return judgement


def paths_in(candidates: pa.Table) -> set[str]:
    return set(candidates["path"].to_pylist())


def made(new_bench: Callable[..., Any], seed: int, *, rollbacks: bool) -> History:
    rng = random.Random(seed)
    history = History(new_bench({}), rng)
    for _ in range(12):
        if rollbacks and history.versions and rng.random() < 0.25:
            history.roll_back()
        else:
            history.commit()
    return history


@pytest.mark.parametrize("rollbacks", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_no_version_has_is_deletable_and_nothing_else(
    new_bench: Callable[..., Any], seed: int, rollbacks: bool
) -> None:
    """Whether births are known or not, after rollbacks or without, and if no interval can be trusted.

    After a rollback a file of known birth is kept longer than it has to be: for any version in its life.
    """
    history = made(new_bench, seed, rollbacks=rollbacks)
    needed = history.forget()
    for unknown_share in (0.0, 0.5, 1.0):
        candidates = history.candidates(unknown_share=unknown_share)
        for is_lost in (False, True):
            judgement = history.judge(candidates, is_lost=is_lost)
            kept = needed if is_lost or not rollbacks else needed | history.with_holes(candidates)
            assert paths_in(judgement.deletable) == paths_in(candidates) - kept
            assert (judgement.complete, judgement.warnings) == (True, ())
            assert set(judgement.kept) <= {"needed", "restored"}
    context = history.bench.table.context
    used = names_in_use(context, read_live_versions(context), ReferencedFiles(context))
    assert {path for names in used for path in names.to_pylist() if path.startswith("bucket-0/")} == needed


@pytest.mark.parametrize("seed", range(230, 246))
def test_what_was_brought_back_behind_the_walk_is_kept(new_bench: Callable[..., Any], seed: int) -> None:
    """Rollbacks that the walk over the deltas did not see yet, also expired ones of which only a tag is left."""
    history = made(new_bench, seed, rollbacks=False)
    candidates, walk_end = history.candidates(unknown_share=0.0), max(history.versions)
    for _ in range(3):
        history.roll_back()
        history.commit()
        history.commit()
    needed = history.forget()
    assert not paths_in(history.judge(candidates, walk_end=walk_end).deletable) & needed


@pytest.mark.parametrize("rollbacks", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_a_deleted_tag_alone_had_is_deletable(new_bench: Callable[..., Any], seed: int, rollbacks: bool) -> None:
    """Its files may have lived longer than the tag: the version behind it is asked too."""
    history = made(new_bench, seed, rollbacks=rollbacks)
    needed = history.forget()
    for tag_id, births in history.versions.items():
        if not births:
            continue
        paths = [f"bucket-0/{name}" for name in births]
        born = [history.rng.choice((born, UNKNOWN)) for born in births.values()]
        candidates = candidates_of(Role.DATA, paths, size_bytes=1, born=np.array(born), dead=tag_id + 1)
        judgement = history.judge(candidates, is_open=True)
        assert paths_in(judgement.deletable) == set(paths) - needed, tag_id


@pytest.mark.parametrize("seed", range(3))
def test_each_version_is_judged_as_if_it_alone_were_released(new_bench: Callable[..., Any], seed: int) -> None:
    """After a rollback, files that another version has are kept, wherever in the history it is."""
    history = made(new_bench, seed, rollbacks=True)
    history.roll_back()
    ids = sorted(history.versions)
    for snapshot_id in ids:
        history.bench.table.create_tag(f"t{snapshot_id}", snapshot_id=snapshot_id)
    rows = []
    for earlier, owner, later in zip([0, *ids], ids, [*ids[1:], 0], strict=False):
        near = {*history.versions.get(earlier, ()), *history.versions.get(later, ())}
        rows += [(f"bucket-0/{name}", owner) for name in history.versions[owner] if name not in near]
    candidates = candidates_of(Role.DATA, [path for path, _ in rows], born=1, dead=2)
    context = history.bench.table.context
    owners = np.array([owner for _, owner in rows], np.int64)
    versions, referenced = read_live_versions(context), ReferencedFiles(context)
    deletable = judge_each(candidates, owners, branch=context, versions=versions, referenced=referenced)
    for (path, owner), may_go in zip(rows, deletable.tolist(), strict=True):
        others = {name for number, births in history.versions.items() if number != owner for name in births}
        assert may_go is (path.removeprefix("bucket-0/") not in others)


def test_what_an_unreadable_version_may_need_is_kept(new_bench: Callable[..., Any]) -> None:
    """The judgement is not complete, and says which version it is and how many files are kept for it."""
    history = made(new_bench, 3, rollbacks=False)
    needed = history.forget()
    candidates = history.candidates(unknown_share=1.0)
    context = history.bench.table.context
    expected = history.judge(candidates)
    assert paths_in(expected.deletable)
    for snapshot_id in read_live_versions(context).ids.tolist():
        snapshot = read_live_versions(context).load(context, snapshot_id)
        path = context.layout.manifest(snapshot.delta_manifest_list)
        body = bytes(history.bench.store.get(path))
        history.bench.store.delete([path])
        judgement = history.judge(candidates, is_lost=True)
        history.bench.store.put(path, body)
        assert paths_in(judgement.deletable) <= paths_in(candidates) - needed
        assert judgement.complete is (not judgement.warnings)
        if judgement.warnings:
            (warning,) = judgement.warnings
            assert f"version {snapshot_id} cannot be read" in warning
            assert f" {judgement.kept['unreadable']} files are kept for it" in warning
            assert not paths_in(judgement.deletable)


def test_a_branch_deletes_nothing_of_its_origin(new_bench: Callable[..., Any]) -> None:
    """What was born at the fork or before it is main's; while the fork is unknown, all is."""
    history = made(new_bench, 1, rollbacks=False)
    branch = with_fork_point(history.bench.table.create_branch("b").context)
    fork_id = max(history.versions)
    of_fork = f"bucket-0/f{fork_id}"
    candidates = candidates_of(
        Role.DATA,
        ["bucket-0/x", "bucket-0/y", of_fork, "bucket-0/z"],
        born=np.array([fork_id, fork_id + 1, UNKNOWN, UNKNOWN]),
        dead=fork_id + 2,
    )
    none = LiveVersions(np.array([], np.int64), (), np.array([], np.int64))
    judging = partial(judge, candidates, versions=none, referenced=ReferencedFiles(branch), walk_end=fork_id + 2)
    judgement = judging(branch=branch)
    assert paths_in(judgement.deletable) == {"bucket-0/y", "bucket-0/z"}
    assert judgement.kept == {"of the branch's origin": 2}
    assert judgement.complete
    unknown = judging(branch=replace(branch, fork_point=None))
    assert (unknown.deletable.num_rows, unknown.kept, unknown.complete) == (0, {"of the branch's origin": 4}, False)
    assert unknown.warnings == ("where the branch 'b' started is unknown, so its files are kept",)


def test_a_changelog_that_is_kept_keeps_its_files(new_bench: Callable[..., Any]) -> None:
    """Those that were born with it, of the roles of changelogs alone."""
    history = made(new_bench, 1, rollbacks=False)
    for name in ("changelog-3", "changelog-4x", "other"):
        history.bench.store.put(f"changelog/{name}", b"{}")
    roles = (Role.CHANGELOG, Role.CHANGELOG_MANIFEST, Role.CHANGELOG_LIST, Role.DATA, Role.INDEX)
    candidates = concat(
        candidates_of(role, [f"{role}-{born}"], born=born, dead=born) for role in roles for born in (3, 4)
    )
    judgement = history.judge(candidates)
    assert judgement.kept == {"of a kept changelog": 3}
    assert paths_in(candidates) - paths_in(judgement.deletable) == {f"{role}-3" for role in roles[:3]}
