"""Each repair of repositories undone, by patching it out here: some race must break a promise within two hundred seeds.

A mutation names the scenario that is dense in what it is about; everything else is as in `test_repo_races`. Most
change one line of the product: the line has to be there, so a mutation that no longer fits fails by itself.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from lakebed.repo.collect import collect
from lakebed.repo.committed.merge import MergeOutcome
from lakebed.repo.heads import compact, heads, importing, write
from lakebed.repo.heads import merge as merge_module
from lakebed.repo.model.model import DIFF_SCHEMA, DiffKind
from lakebed.repo.model.rows import rows_of
from lakebed.repo.references import branches, tags
from lakebed.repo.staging import changes, cleanup, protocol, uncommitted, view
from lakebed.repo.verbs import commit, pick, rebase, reset
from lakebed.repo.verbs import merge as merge_verb
from worlds.repo.model import merged
from worlds.repo.scenarios import SIMULATION
from worlds.undone import Mutation, Patch, Undone

UNDONE = Undone(SIMULATION, "repositories")
undone_in = UNDONE.in_scenario


def recompiled(module: ModuleType, name: str, *lines: tuple[str, str], **more: object) -> Any:
    """A function of a module, or a method, with some words of its source replaced."""
    result: Any = module
    for part in name.split("."):
        result = getattr(result, part)
    source = textwrap.dedent(inspect.getsource(result))
    for before, after in lines:
        assert before in source, f"{module.__name__}.{name} does not say {before!r} any more"
        source = source.replace(before, after)
    names = {**vars(module), **more}
    exec(compile("from __future__ import annotations\n" + source, f"{name}, replaced", "exec"), names)
    return names[name.rpartition(".")[2]]


def replace_source(patch: Patch, module: ModuleType, name: str, *lines: tuple[str, str], **more: object) -> None:
    """Replace a function of a module, or a method, by what it is when some words are replaced; wherever it is known."""
    new = recompiled(module, name, *lines, **more)
    owner, _, last = name.rpartition(".")
    if owner:
        patch.setattr(getattr(module, owner), last, new)
        return
    old = getattr(module, name)
    for other in [item for path, item in sys.modules.items() if path.startswith(("lakebed.", "worlds."))]:
        if vars(other).get(name) is old:
            patch.setattr(other, name, new)


def without(expected: Mapping[bytes, bytes | None], word: bytes) -> dict[bytes, bytes | None]:
    """What is expected, but for keys that have a word in them."""
    return {key: value for key, value in expected.items() if word not in key}


# ---- the write protocol


@undone_in("staging", seed=4)
def branches_are_not_expected(patch: Patch) -> None:
    """A staged row lands even when the branch's record has changed since it was read."""
    write_rows = write.write_rows

    def anyway(context: Any, keys: Any, values: Any, *, expected: Any) -> bool:
        return write_rows(context, keys, values, expected=without(expected, b"/branches/"))

    patch.setattr(write, "write_rows", anyway)


@undone_in("garbage", seed=253)
def boundaries_are_not_expected(patch: Patch) -> None:
    """A staged row lands even when a collection has begun since the boundary was read."""
    write_rows = write.write_rows

    def anyway(context: Any, keys: Any, values: Any, *, expected: Any) -> bool:
        return write_rows(context, keys, values, expected=without(expected, b"/boundary"))

    patch.setattr(write, "write_rows", anyway)


@undone_in("sleepers", seed=1)
def uploads_do_not_age(patch: Patch) -> None:
    """An upload is staged however old it is."""
    patch.setattr(write, "check_age", lambda ulid, boundary: None)


@undone_in("insisters", seed=25)
def unclear_writes_are_made_again(patch: Patch) -> None:
    """A write whose reply was lost is made again, without a look at its outcome."""
    replace_source(
        patch,
        protocol,
        "write_rows",
        ("if snapshot.get_many(keys) != list(values):\n                raise", "return False"),
    )


@undone_in("insisters", seed=60)
def own_entries_are_rivals(patch: Patch) -> None:
    """A conditional put takes its own entry, sealed since its first try, for another caller's."""
    replace_source(patch, write, "_stage_unless", (".address == entry.address", ".address == '?'"))


@undone_in("rivals", seed=3)
def rivals_are_not_expected(patch: Patch) -> None:
    """A conditional put looks, and then writes over any change made meanwhile."""
    replace_source(
        patch,
        write,
        "_write_decided",
        ("expected={**precondition.on_both, staged_key: newest}", "expected=precondition.on_both"),
    )


@undone_in("deleters", seed=12)
def entries_are_removed_anyway(patch: Patch) -> None:
    """A staged entry is removed without a tombstone, in any state of the branch's record."""
    replace_rows = write.replace_rows

    def anyway(context: Any, puts: Any, removed: Any, *, expected: Any) -> bool:
        return replace_rows(context, puts, removed, expected=without(expected, b"/branches/"))

    patch.setattr(write, "replace_rows", anyway)


@undone_in("deleters")
def only_the_newest_layer_is_deleted(patch: Patch) -> None:
    """A staged entry is removed without a tombstone although an older layer has the path."""
    replace_source(patch, write, "delete_many", ("if lower is None:", "if newest is not None:"))


@undone_in("prefixes")
def prefixes_are_cleared_in_place(patch: Patch) -> None:
    """The token that is written to says that a prefix is cleared: what it hides is below, what it shows stays."""
    replace_source(
        patch,
        write,
        "delete_prefix",
        (
            "after = msgspec.structs.replace(record, staging=token, sealed=(record.staging, *record.sealed))",
            "after = msgspec.structs.replace(record, staging=msgspec.structs.replace(record.staging, clears=prefix))",
        ),
    )


@undone_in("prefixes")
def clears_hide_their_own_token(patch: Patch) -> None:
    """A cleared prefix hides what was written after it, too."""
    replace_source(
        patch,
        changes,
        "token_sources",
        (
            "        sources.append(_of_ranges(of_token(token), bounds_left))\n        if token.clears is not None:\n"
            "            clearing.append(token)\n"
            "            bounds_left = cut_intervals(start, end, clears_of(clearing))\n",
            "        if token.clears is not None:\n            clearing.append(token)\n"
            "            bounds_left = cut_intervals(start, end, clears_of(clearing))\n"
            "        sources.append(_of_ranges(of_token(token), bounds_left))\n",
        ),
    )


# ---- reading


@undone_in("sweepers", seed=6)
def layers_of_two_moments(patch: Patch) -> None:
    """A view reads the branch's record first, and rows in a later snapshot."""
    replace_source(
        patch,
        view,
        "at_reference",
        (
            "    with context.key_value.snapshot() as snapshot:\n"
            "        yield reference_view(context, ref, snapshot=snapshot)\n",
            "    with context.key_value.snapshot() as early:\n"
            "        shown = reference_view(context, ref, snapshot=early)\n"
            "    with context.key_value.snapshot() as snapshot:\n"
            "        yield View(context, snapshot=snapshot, base=shown.base, tokens=shown.tokens)\n",
        ),
    )


def naively_joined(patch: Patch, is_stale: Callable[[bytes | None, bytes | None, bytes | None], bool]) -> None:
    """Let staged rows differ from the head by what they are, where they lie over a difference of the compacted."""

    def joined(left: pa.RecordBatch, staged: pa.RecordBatch, compacted: pa.RecordBatch, right: pa.RecordBatch) -> Any:
        heads_rows, middle, top = (
            dict(zip(*batch.to_pydict().values(), strict=True)) for batch in (left, compacted, staged)
        )
        shown = dict(zip(*right.to_pydict().values(), strict=True))
        rows: list[tuple[bytes, int, bytes | None, bytes | None]] = []
        for path in sorted(heads_rows.keys() | shown.keys()):
            before, after = heads_rows.get(path) or None, shown.get(path) or None
            differs = (before and before[:16]) != (after and after[:16])
            stale = path in top and path in middle and is_stale(before, middle[path] or None, after)
            if differs or stale:
                kind = DiffKind.REMOVED if after is None else DiffKind.ADDED if before is None else DiffKind.CHANGED
                rows.append((path, int(kind), before, after))
        columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, DIFF_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=DIFF_SCHEMA)

    replace_source(
        patch,
        uncommitted,
        "uncommitted",
        ("diff_rows(without_tombstones(left), without_tombstones(right))", "joined(left, staged, compacted, right)"),
        joined=joined,
    )


@undone_in("deleters", seed=7)
def added_then_deleted_differs(patch: Patch) -> None:
    """Stale case 1: what was added, compacted and then deleted is removed."""
    naively_joined(patch, lambda before, middle, after: before is None and middle is not None and after is None)


@undone_in("deleters", seed=14)
def changed_then_changed_back_differs(patch: Patch) -> None:
    """Stale case 2: what was changed, compacted and then changed back is changed."""
    naively_joined(patch, lambda before, middle, after: before is not None and middle is not None and after is not None)


@undone_in("deleters", seed=43)
def removed_then_restored_differs(patch: Patch) -> None:
    """Stale case 3: what was removed, compacted and then restored is changed."""
    naively_joined(patch, lambda before, middle, after: before is not None and middle is None and after is not None)


# ---- moving heads


@undone_in("movers", seed=4)
def publishes_compare_the_head_alone(patch: Patch) -> None:
    """A record whose head is as it was is taken for one that has only gained tokens."""
    patch.setattr(heads, "_only_gained", lambda record, before: record.commit_id == before.commit_id)


@undone_in("prefixes", seed=7)
def commits_drop_what_they_did_not_see(patch: Patch) -> None:
    """A publish drops every sealed token."""
    replace_source(patch, heads, "_move_record", ("sealed=gained", "sealed=()"))


@undone_in("prefixes", seed=12)
def compactions_drop_what_they_did_not_see(patch: Patch) -> None:
    """A compaction, and it alone, drops every sealed token."""
    moved = recompiled(heads, "_move_record", ("sealed=gained", "sealed=()"))
    patch.setattr(compact, "publish", recompiled(heads, "publish", _move_record=moved))


@undone_in("staging")
def full_tokens_are_taken_for_empty(patch: Patch) -> None:
    """What is staged is not sealed, and so not seen, by a verb that moves the head."""
    replace_source(patch, heads, "_look", ("is_empty = not any(batch.num_rows for batch in rows)", "is_empty = True"))


@undone_in("staging")
def tokens_are_applied_oldest_last(patch: Patch) -> None:
    """Of two sealed tokens the older one wins."""
    changes_of = heads.changes_of
    for module in (heads, compact):
        patch.setattr(
            module, "changes_of", lambda context, snapshot, tokens: changes_of(context, snapshot, tokens[::-1])
        )


@undone_in("staging")
def commits_stand_on_the_head(patch: Patch) -> None:
    """What was compacted is forgotten by the next commit."""
    patch.setattr(heads.SealedBranch, "base", property(lambda sealed: sealed.head.metarange))


@undone_in("movers")
def what_was_not_chosen_is_lost(patch: Patch) -> None:
    """A commit of some paths leaves nothing uncommitted."""
    replace_source(
        patch,
        commit,
        "Commit.run",
        ("None if not is_partial or same_state(context, target, state) else state", "None"),
    )


@undone_in("movers", seed=4)
def hard_resets_keep_what_is_compacted(patch: Patch) -> None:
    """The compacted metarange stays when a branch goes to another commit."""
    replace_source(
        patch,
        reset,
        "HardReset.run",
        ("return Move(id, relies_on=[id])", "return Move(id, sealed.record.compacted, relies_on=[id])"),
    )


@undone_in("movers", seed=1)
def resets_keep_what_is_compacted(patch: Patch) -> None:
    """The compacted metarange stays when all that is uncommitted is given up."""
    replace_source(
        patch,
        reset,
        "Reset.run",
        ("Move(sealed.record.commit_id)", "Move(sealed.record.commit_id, sealed.record.compacted)"),
    )


@undone_in("merges", seed=3)
def merges_do_not_mind_the_dirt(patch: Patch) -> None:
    """A merge, pick, rebase or import drops what is uncommitted."""
    for module in (merge_verb, pick, rebase, importing):
        patch.setattr(module, "check_clean", lambda context, sealed, *, operation: None)


@undone_in("insisters", seed=1)
def unclear_publishes_are_made_again(patch: Patch) -> None:
    """A publish whose reply was lost is taken for one that did not happen."""
    replace_source(
        patch,
        heads,
        "publish",
        ("is_made = proof is not None and", "is_made = False and"),
        ("is_made = seen == encoded", "is_made = False"),
    )


@undone_in("merges")
def merges_by_identity_alone(patch: Patch) -> None:
    """An entry that the base has at any path counts as unchanged."""

    def merge_metaranges(
        committed: Any, *, base: Any, source: Any, destination: Any, strategy: Any = None, prefix: bytes = b"", **_: Any
    ) -> MergeOutcome:
        states = []
        for ref in (base, source, destination):
            columns = [batch.to_pydict() for batch in committed.open(ref).rows()]
            states.append({p: v for column in columns for p, v in zip(column["path"], column["value"], strict=True)})
        known = {value[:16] for value in states[0].values()}
        theirs = {path: value for path, value in states[1].items() if value[:16] not in known or path in states[0]}
        state, conflicts = merged(states[0], theirs, states[2], strategy=strategy, prefix=prefix)
        if conflicts and strategy is None:
            return MergeOutcome(None, conflicts=[path.decode() for path in conflicts], conflict_count=len(conflicts))
        writer = committed.writer(base=destination)
        if state:
            writer.write_rows(rows_of(*zip(*sorted(state.items()), strict=True)))
        return MergeOutcome(writer.finish())

    patch.setattr(merge_module, "merge_metaranges", merge_metaranges)


@undone_in("imports", seed=18)
def imports_do_not_look_at_their_record(patch: Patch) -> None:
    """Two runs of one import do not see each other."""
    replace_source(patch, importing, "_Run._plan", (", expected={key: self._raw}", ""))


# ---- branches, tags and tokens


@undone_in("branches", seed=40)
def deletions_do_not_look_at_the_record(patch: Patch) -> None:
    """A branch is deleted even when rows were sealed meanwhile."""
    replace_source(patch, branches, "delete_branch", ("expected={key: raw}", "expected={}"))


@undone_in("branches", seed=1)
def deletions_forget_sealed_tokens(patch: Patch) -> None:
    """A branch is deleted, and only its staging token is marked for the cleanup."""
    replace_source(patch, branches, "_traces", ("(branch.staging, *branch.sealed)", "(branch.staging,)"))


@undone_in("crowd")
def named_tokens_are_orphans(patch: Patch) -> None:
    """The cleanup does not look which tokens branches name."""
    patch.setattr(cleanup, "_find_tokens", lambda context, snapshot: set())


@undone_in("expiry", seed=4)
def expired_commits_can_be_tagged(patch: Patch) -> None:
    """A tag is made of a commit whose objects go."""
    replace_source(patch, tags, "create_tag", (", context.keys.expired(commit_id): None}", "}"))


@undone_in("expiry", is_long=True)
def expired_commits_can_be_branched(patch: Patch) -> None:
    """A branch is made, or comes back, at a commit whose objects go."""
    replace_source(patch, branches, "_create", ("context.keys.expired(commit_id): None,", ""))


@undone_in("retention", is_long=True)
def expired_commits_can_be_heads(patch: Patch) -> None:
    """A head goes to a commit whose objects go, or takes over its entries."""
    guards = heads._guards
    patch.setattr(heads, "_guards", lambda context, sealed, move: without(guards(context, sealed, move), b"/expired/"))


@undone_in("sweepers")
def marks_go_before_their_rows(patch: Patch) -> None:
    """A cleanup that is not finished forgets the token."""
    replace_source(
        patch, cleanup, "_remove", ("if row_count >= row_count_max and next(keys, None) is not None:", "if False:")
    )


# ---- the collection


@undone_in("retention")
def no_marks_of_expiry(patch: Patch) -> None:
    """Commits that lose their objects are not marked."""
    patch.setattr(collect._Collection, "_write_marks", lambda self: None)


@undone_in("expiry", is_long=True)
def no_second_look(patch: Patch) -> None:
    """What was referred to between the first snapshot and its marks is not seen."""
    replace_source(patch, collect, "_Collection._judge", ("second = self._mark(snapshot, now_ms)", "second = first"))


@undone_in("garbage", seed=40)
def no_boundary(patch: Patch) -> None:
    """Uploads are collected without their age being passed first."""
    patch.setattr(collect._Collection, "_raise_boundary", lambda self, wanted: wanted)


@undone_in("sleepers", is_long=True)
def boundaries_go_back(patch: Patch) -> None:
    """A collector that has slept sets the boundary back."""
    replace_source(
        patch,
        collect,
        "_Collection._raise_boundary",
        (
            "if raw is not None and raw.decode() >= boundary_wanted:",
            "if raw is not None and raw.decode() == boundary_wanted:",
        ),
    )


@undone_in("sleepers", seed=1)
def publishes_do_not_expect_the_boundary(patch: Patch) -> None:
    """What an operation has written is published even when a collection has begun meanwhile."""
    guards = heads._guards
    patch.setattr(heads, "_guards", lambda context, sealed, move: without(guards(context, sealed, move), b"/boundary"))


@undone_in("garbage")
def what_is_staged_is_garbage(patch: Patch) -> None:
    """Only what is committed is needed."""
    patch.setattr(collect, "_read_staged", lambda context, marked, snapshot: pa.chunked_array([], pa.string()))


@undone_in("garbage")
def what_is_compacted_is_garbage(patch: Patch) -> None:
    """A compacted metarange does not count as needed."""
    for name in ("metaranges_to_keep", "metaranges_with_objects"):
        which = "remembered" if name == "metaranges_to_keep" else "active"
        patch.setattr(
            collect.Marked,
            name,
            lambda self, which=which: [self.commits[item].metarange for item in sorted(getattr(self, which))],
        )


# ---- what was replaced, and who reads it


@undone_in("replaced", is_long=True)
def replaced_states_have_no_grace(patch: Patch) -> None:
    """A collection takes what was replaced, however lately, once its files are old enough."""
    replace_source(patch, collect, "_Collection._mark", ("grace_ms=self._grace_ms", "grace_ms=0"))


@undone_in("replaced", seed=7)
def compactions_note_nothing(patch: Patch) -> None:
    """A move of a branch does not say what compacted state it gives up."""
    patch.setattr(heads, "supersede_compaction", lambda *facts, **more: [])


@undone_in("replaced", seed=288, is_long=True)
def readers_look_once(patch: Patch) -> None:
    """A reader whose state was collected before its first row does not look again."""
    replace_source(
        patch,
        view,
        "look_again",
        ("    for _ in range(LOOKS_MAX - 1):\n        with went_suppressed():\n            return look()\n", ""),
    )


@undone_in("replaced", seed=14)
def plans_look_once(patch: Patch) -> None:
    """A verb whose state was replaced and collected while it worked does not begin again."""
    for module in (heads, compact):
        patch.setattr(module, "beginning_again", lambda context, sealed: nullcontext())


@undone_in("replaced", seed=90)
def what_was_collected_is_corrupt(patch: Patch) -> None:
    """A file that a collection was to delete is said to be damage."""
    for module in (view, uncommitted):
        patch.setattr(module, "explaining_missing", lambda context, *refs: nullcontext())


@pytest.mark.parametrize(("mutation", "scenario", "seed"), UNDONE.cases)
def test_each_repair_undone_is_found(
    mutation: Mutation, scenario: str, seed: int | None, monkeypatch: Patch, found_at_seed: Callable[..., None]
) -> None:
    """Without this repair some race breaks a promise within two hundred seeds."""
    UNDONE.find(mutation, scenario, seed, monkeypatch, found_at_seed)
