"""Resolve references: from a text to a commit, or to a branch with its staging area.

Owns: `resolve`. A name is searched among branches, then tags, then commits (a whole id, or the beginning of exactly
one). Invariants: the same snapshot gives the same answer. For the syntax, see
`lakebed.repo.model.names.parse_reference`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from lakebed.errors import InvalidRequest, NotFound
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.repo.model.model import Branch, Commit, Tag
from lakebed.repo.model.names import ReferenceStep, deletion_error, parse_reference
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import decode_record
from lakebed.repo.references.commits import COMMIT_ID_CHARACTERS, HEXADECIMAL, find_commit, is_commit_id, load_commit
from lakebed.repo.references.tags import is_live

ABBREVIATION_CHARACTERS_MIN: Final = 6
"""Shortest abbreviation of a commit id."""

_SHOWN_MAX: Final = 5
_NAMES_LOOKED_AT_MAX: Final = 1000
_NAMES_SHOWN_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class ResolvedReference:
    """The result of resolving a reference at one moment.

    Attributes:
        kind: the kind of its name.
        name: the name of the branch or tag; for a commit, its whole id.
        commit_id: the commit that it resolves to; for a branch without steps, its head.
        branch: the branch's record if its staged changes are included; None: only the commit.
    """

    text: str
    kind: Literal["branch", "tag", "commit"]
    name: str
    commit_id: str
    commit: Commit
    branch: Branch | None = None


def resolve(context: RepositoryContext, text: str, *, snapshot: KeyValueSnapshot | None = None) -> ResolvedReference:
    """Resolve a reference.

    A branch alone, or with ``$``, means its head with its staged changes; with ``@`` or any step only the commit.

    Raises:
        InvalidRequest: kind ``invalid_reference``: it is malformed, or has ``$`` behind a name that is not a branch's;
            ``ambiguous_reference``: the ids of several commits begin with the name.
        NotFound: kind ``reference_not_found``: no branch, tag or commit has that name, or the commit has no such
            ancestor.
        Corruption: a record that is read is damaged.
    Cost: 2 to 4 reads of the key-value store, and 1 a step; 1 snapshot when none is given.
    """
    if snapshot is None:
        with context.key_value.snapshot() as new_snapshot:
            return resolve(context, text, snapshot=new_snapshot)
    reference = parse_reference(text)
    kind, name, commit_id, branch = _resolve_name(context, reference.name, text=text, snapshot=snapshot)
    if reference.mode == "$" and (branch is None or reference.steps):
        raise InvalidRequest(
            f"{text!r} asks for what is staged, and only a branch itself has that: leave out the $.",
            kind="invalid_reference",
            reference=text,
        )
    commit = load_commit(context, commit_id, snapshot=snapshot)
    for step in reference.steps:
        commit_id, commit = _step(context, commit_id, commit, step=step, text=text, snapshot=snapshot)
    if reference.steps or reference.mode == "@":
        branch = None
    return ResolvedReference(text, kind, name, commit_id, commit, branch)


def resolve_commit(
    context: RepositoryContext, text: str, *, snapshot: KeyValueSnapshot | None = None
) -> tuple[str, Commit]:
    """Id and record of the commit that a reference resolves to.

    Raises as `resolve`, and `InvalidRequest` (``invalid_reference``) for ``branch$``: staged changes are not a commit.
    """
    if parse_reference(text).mode == "$":
        raise InvalidRequest(
            f"{text!r} asks for what is staged, and this reads what is committed: leave out the $.",
            kind="invalid_reference",
            reference=text,
        )
    resolved = resolve(context, text, snapshot=snapshot)
    return resolved.commit_id, resolved.commit


def _resolve_name(
    context: RepositoryContext, name: str, *, text: str, snapshot: KeyValueSnapshot
) -> tuple[Literal["branch", "tag", "commit"], str, str, Branch | None]:
    """Kind, whole name, commit id and branch record of a name."""
    key = context.keys.branch(name)
    raw = snapshot.get(key)
    if raw is not None:
        branch = decode_record(raw, Branch, key=key)
        return "branch", name, branch.commit_id, branch
    # The branches of a deleted repository were deleted at once; its tags and commits are deleted later.
    if snapshot.get(context.keys.deleted) is not None:
        raise deletion_error(context.name)
    key = context.keys.tag(name)
    raw = snapshot.get(key)
    if raw is not None:
        tag = decode_record(raw, Tag, key=key)
        if is_live(tag, context.now_ms()):
            return "tag", name, tag.commit_id, None
    if is_commit_id(name):
        if find_commit(context, name, snapshot=snapshot) is not None:
            return "commit", name, name, None
    elif HEXADECIMAL.issuperset(name) and ABBREVIATION_CHARACTERS_MIN <= len(name) < COMMIT_ID_CHARACTERS:
        commit_id = _complete_id(context, name, snapshot=snapshot)
        if commit_id is not None:
            return "commit", commit_id, commit_id, None
    raise _not_found(context, name, text=text, snapshot=snapshot)


def _complete_id(context: RepositoryContext, beginning: str, *, snapshot: KeyValueSnapshot) -> str | None:
    """The one commit whose id has this beginning; None: none has. Raises `InvalidRequest` if several have."""
    start = context.keys.commit(beginning)
    begin = len(context.keys.commit())
    ids = [key[begin:].decode() for key, _ in islice(snapshot.scan(*prefix_range(start)), _SHOWN_MAX + 1)]
    if len(ids) > 1:
        ids_text = ", ".join(id[: len(beginning) + 6] for id in ids[:_SHOWN_MAX])
        raise InvalidRequest(
            f"Several commits of repository {context.name} begin with {beginning!r}: {ids_text}"
            f"{', ...' if len(ids) > _SHOWN_MAX else ''}. Give more characters.",
            kind="ambiguous_reference",
            reference=beginning,
            commits=ids[:_SHOWN_MAX],
        )
    return ids[0] if ids else None


def _step(
    context: RepositoryContext, id: str, commit: Commit, *, step: ReferenceStep, text: str, snapshot: KeyValueSnapshot
) -> tuple[str, Commit]:
    """Id and record of the commit to which a step of a reference leads. Raises `NotFound` if there is none."""
    if step.kind == "^":
        if step.count == 0:
            return id, commit
        if step.count > len(commit.parents):
            parent_text = {0: "no parent", 1: "one parent"}.get(len(commit.parents), f"{len(commit.parents)} parents")
            raise _no_such_commit(
                context, f"{text!r}: commit {id} has {parent_text}, and number {step.count} was asked for."
            )
        parent = commit.parents[step.count - 1]
        return parent, load_commit(context, parent, snapshot=snapshot)
    for _ in range(step.count):
        if not commit.parents:
            raise _no_such_commit(context, f"{text!r} goes back behind the first commit of repository {context.name}.")
        id = commit.parents[0]
        commit = load_commit(context, id, snapshot=snapshot)
    return id, commit


def _no_such_commit(context: RepositoryContext, sentence: str) -> NotFound:
    return NotFound(sentence, kind="reference_not_found", repository=context.name)


def _not_found(context: RepositoryContext, name: str, *, text: str, snapshot: KeyValueSnapshot) -> NotFound:
    """The error for an unknown name, with the nearest names, or some of the names that exist."""
    if snapshot.get(context.keys.deleted) is not None:
        return deletion_error(context.name)
    branches, tags = _names(context.keys.branch(), snapshot=snapshot), _names(context.keys.tag(), snapshot=snapshot)
    similar = difflib.get_close_matches(name, dict.fromkeys([*branches, *tags]), n=3)
    hint = f" Did you mean {' or '.join(similar)}?" if similar else f" It has {_some('branch', 'branches', branches)}"
    if not similar:
        hint += f" and {_some('tag', 'tags', tags)}." if tags else "."
    return NotFound(
        f"Repository {context.name} has no branch, tag or commit {name!r}.{hint}",
        kind="reference_not_found",
        repository=context.name,
        reference=text,
        near=similar,
    )


def no_such_branch(context: RepositoryContext, name: str, *, snapshot: KeyValueSnapshot) -> NotFound:
    """The error for a missing branch. It says if a tag has the name, or gives the nearest or some existing branches.

    Cost: 1 scan of up to 1,000 names, 2 reads.
    """
    if snapshot.get(context.keys.deleted) is not None:
        return deletion_error(context.name)
    names = _names(context.keys.branch(), snapshot=snapshot)
    similar = difflib.get_close_matches(name, names, n=3)
    if snapshot.get(context.keys.tag(name)) is not None:
        hint = " That is a tag, and this needs a branch."
    elif similar:
        hint = f" Did you mean {' or '.join(similar)}?"
    else:
        hint = f" It has {_some('branch', 'branches', names)}."
    return NotFound(
        f"Repository {context.name} has no branch {name!r}.{hint}",
        kind="branch_not_found",
        repository=context.name,
        branch=name,
    )


def _names(prefix: bytes, *, snapshot: KeyValueSnapshot) -> list[str]:
    keys = islice(snapshot.scan(*prefix_range(prefix)), _NAMES_LOOKED_AT_MAX)
    return [key[len(prefix) :].decode(errors="replace") for key, _ in keys]


def _some(singular: str, plural: str, names: list[str]) -> str:
    if not names:
        return f"no {singular}"
    more_text = ", ..." if len(names) > _NAMES_SHOWN_MAX else ""
    return f"the {singular if len(names) == 1 else plural} {', '.join(names[:_NAMES_SHOWN_MAX])}{more_text}"
