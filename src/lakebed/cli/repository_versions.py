"""Commands of ``lakebed repo`` on versions: commit, log, show, diff, status, merge, revert, cherry-pick, reset ..."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import Annotated, Any

from lakebed.cli import args, homes, say
from lakebed.cli.args import DryRun, Json, Yes
from lakebed.cli.grammar import Group, argument, option
from lakebed.cli.homes import BranchName, HomeUrl, Metadata, ObjectPath, Reference, RepositoryName
from lakebed.errors import InvalidRequest

__all__ = ["register"]

Message = Annotated[str, option("--message", "-m", help="What the commit says.")]
Meta = Annotated[list[str] | None, option("--meta", metavar="KEY=VALUE", help="Metadata of the commit.")]
AllowEmpty = Annotated[bool, option("--allow-empty", help="Also when nothing changed.")]
Parent = Annotated[
    int | None, option("--parent", min=1, help="Of a merge commit: against which parent. The first is 1.")
]


class Strategy(StrEnum):
    """Who wins where both sides changed a path."""

    source_wins = "source-wins"
    dest_wins = "dest-wins"


OnConflict = Annotated[
    Strategy | None,
    option("--strategy", help="Where both changed a path: source-wins or dest-wins. Default: a conflict."),
]


def register(app: Group) -> None:
    """Add the commands to the group."""
    for command in (commit, log, show, diff, status, merge, revert, cherry_pick, reset, rebase, compact, blame):
        app.command()(command)


def commit(
    lake: HomeUrl,
    repository: RepositoryName,
    branch: BranchName,
    message: Message,
    path: Annotated[
        list[str] | None, option("--path", help="Only this path, or PREFIX/ for all below; again for more.")
    ] = None,
    meta: Meta = None,
    allow_empty: AllowEmpty = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Make what is uncommitted on a branch a version."""
    paths = [one for one in path or [] if not one.endswith("/")]
    prefixes = [one for one in path or [] if one.endswith("/")]
    with homes.writing(lake, metadata=metadata) as home:
        made = (
            home.repository(repository)
            .branch(branch)
            .commit(
                message,
                metadata=args.pairs(meta, like="ticket=42"),
                paths=None if path is None else paths,
                prefixes=None if path is None else prefixes,
                allow_empty=allow_empty,
            )
        )
    _say_commit(made, json=json, text=f"Committed {made.id[:12]} to {branch}: {say.brief(made.commit.message)}")


def log(
    lake: HomeUrl,
    repository: RepositoryName,
    reference: Annotated[
        str,
        argument(
            "REF",
            help="A branch, tag or commit; or a range: main~3..main is behind main, not behind main~3.",
        ),
    ],
    path: Annotated[
        list[str] | None, option("--path", help="Only commits that changed this path, or PREFIX/ below it.")
    ] = None,
    limit: Annotated[int | None, option("--limit", "-n", min=1, help="At most so many.")] = None,
    first_parent: Annotated[bool, option("--first-parent", help="Do not go into what was merged.")] = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """List commits, newest first."""
    paths = [one for one in path or [] if not one.endswith("/")]
    prefixes = [one for one in path or [] if one.endswith("/")]
    with homes.reading(lake, metadata=metadata) as home:
        history = home.repository(repository).log(reference, paths=paths, prefixes=prefixes, first_parent=first_parent)
        found = (homes.of_commit(one) for one in islice(history, limit))
        if json:
            say.document(list(found))
            return
        rows = (
            (one["id"][:12], say.ago(one["created_ms"]), one["committer"] or "-", say.brief(one["message"]))
            for one in found
        )
        say.grid(
            ("commit", "made", "by", "message"),
            rows,
            less=("by", "made"),
            sentences=("message",),
            empty="No commit changed that.",
        )


def show(
    lake: HomeUrl, repository: RepositoryName, reference: Reference, metadata: Metadata = None, json: Json = False
) -> None:
    """Show a commit."""
    with homes.reading(lake, metadata=metadata) as home:
        found = homes.of_commit(home.repository(repository).ref(reference).head())
    if json:
        say.document(found)
        return
    rows = [
        ("commit", found["id"]),
        ("parents", ", ".join(one[:12] for one in found["parents"]) or "-"),
        ("message", found["message"]),
        ("by", found["committer"] or "-"),
        ("made", f"{homes.utc(found['created_ms'])} UTC ({say.ago(found['created_ms'])})"),
        ("objects", f"{found['objects']:,} ({say.size(found['bytes'])})"),
        ("metadata", say.options_text(found["metadata"])),
    ]
    say.facts(rows)


def diff(
    lake: HomeUrl,
    repository: RepositoryName,
    left: Annotated[
        str,
        argument(
            "LEFT",
            help="A reference; alone: what is uncommitted on a branch. Or a range: main~1..main compares the two as "
            "they are, main...dev shows what dev did since they parted.",
        ),
    ],
    right: Annotated[str | None, argument("RIGHT", help="Another reference.")] = None,
    prefix: Annotated[str, option("--prefix", help="Only paths that begin so.")] = "",
    two_dot: Annotated[
        bool, option("--two-dot", help="LEFT against RIGHT as they are, not what RIGHT did since they parted.")
    ] = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Show which paths differ: + added, ~ changed, - removed, ! changed on both sides, so that a merge conflicts."""
    with homes.reading(lake, metadata=metadata) as home:
        opened = home.repository(repository)
        if right is None and ".." not in left:
            found = opened.branch(left).status(prefix)
        else:
            found = opened.diff(left, right, kind="two_dot" if two_dot else None, prefix=prefix)
        homes.print_differences(found, json=json, empty="No difference.")


def status(
    lake: HomeUrl, repository: RepositoryName, branch: BranchName, metadata: Metadata = None, json: Json = False
) -> None:
    """Show what is uncommitted on a branch."""
    with homes.reading(lake, metadata=metadata) as home:
        found = home.repository(repository).branch(branch).status()
        homes.print_differences(found, json=json, empty=f"Nothing is uncommitted on {branch}.")


def merge(
    lake: HomeUrl,
    repository: RepositoryName,
    source: Annotated[str, argument("SOURCE", help="The reference whose changes are wanted.")],
    branch: Annotated[str, argument("BRANCH", help="The branch that gets them.")],
    message: Message = "",
    strategy: OnConflict = None,
    squash: Annotated[bool, option("--squash", help="One commit, without the source as a parent.")] = False,
    prefix: Annotated[str, option("--prefix", help="Only what is below it.")] = "",
    meta: Meta = None,
    allow_empty: AllowEmpty = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Take over what another reference changed since the two parted."""
    with homes.writing(lake, metadata=metadata) as home:
        made = (
            home.repository(repository)
            .branch(branch)
            .merge(
                source,
                message=message or None,
                strategy=_name_of(strategy),
                squash=squash,
                prefix=prefix,
                metadata=args.pairs(meta, like="ticket=42"),
                allow_empty=allow_empty,
            )
        )
    _say_commit(made, json=json, text=f"Merged {source} into {branch}: commit {made.id[:12]}.")


def revert(
    lake: HomeUrl,
    repository: RepositoryName,
    branch: BranchName,
    reference: Reference,
    parent: Parent = None,
    strategy: OnConflict = None,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Undo one commit by another; history is kept."""
    with homes.writing(lake, metadata=metadata) as home:
        made = (
            home.repository(repository)
            .branch(branch)
            .revert(reference, parent_number=parent, strategy=_name_of(strategy))
        )
    _say_commit(made, json=json, text=f"Reverted {reference} on {branch}: commit {made.id[:12]}.")


def cherry_pick(
    lake: HomeUrl,
    repository: RepositoryName,
    branch: BranchName,
    reference: Reference,
    parent: Parent = None,
    strategy: OnConflict = None,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Do on a branch what one commit did elsewhere."""
    with homes.writing(lake, metadata=metadata) as home:
        target = home.repository(repository).branch(branch)
        made = target.cherry_pick(reference, parent_number=parent, strategy=_name_of(strategy))
    _say_commit(made, json=json, text=f"Picked {reference} onto {branch}: commit {made.id[:12]}.")


def reset(
    lake: HomeUrl,
    repository: RepositoryName,
    branch: BranchName,
    path: Annotated[str | None, option("--path", help="Only this path, or PREFIX/ for all below.")] = None,
    hard: Annotated[str | None, option("--hard", metavar="REF", help="Move the branch itself to this commit.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Throw away what is uncommitted on a branch, all of it or below a path; --hard moves the branch."""
    if path is not None and hard is not None:
        raise InvalidRequest("Give --path or --hard, not both.", kind="usage")
    if dry_run:
        with homes.reading(lake, metadata=metadata) as home:
            opened = home.repository(repository)
            found = opened.diff(hard, branch, kind="two_dot") if hard else opened.branch(branch).status(path or "")
            found = (one for one in found if _meant(path, one.path))
            homes.print_differences(found, json=json, empty="Nothing would be thrown away.")
        return
    what = f"Move {branch} to {hard}?" if hard else f"Throw away what is uncommitted on {branch}?"
    say.ask(what, yes=yes, json=json)
    with homes.writing(lake, metadata=metadata) as home:
        target = home.repository(repository).branch(branch)
        found_any = hard is not None or any(_meant(path, one.path) for one in target.status(path or ""))
        if hard is not None:
            target.hard_reset(hard)
        elif path is not None and path.endswith("/"):
            target.reset(prefix=path)
        else:
            target.reset(path=path)
        at = target.commit_id
    done = "Threw away what was uncommitted" if found_any else "Nothing was uncommitted"
    shown = f"{branch} is at {at[:12]} now." if hard else f"{done}{_at(path)} on {branch}."
    say.result(json, {"branch": branch, "commit": at, "dry_run": False}, shown)


def rebase(
    lake: HomeUrl,
    repository: RepositoryName,
    branch: BranchName,
    onto: Annotated[str, argument("ONTO", help="The reference to go on from.")],
    strategy: OnConflict = None,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Replay a branch's own commits on another reference."""
    with homes.writing(lake, metadata=metadata) as home:
        made = home.repository(repository).branch(branch).rebase(onto, strategy=_name_of(strategy))
    _say_commit(made, json=json, text=f"Rebased {branch} onto {onto}: it is at {made.id[:12]} now.")


def compact(
    lake: HomeUrl, repository: RepositoryName, branch: BranchName, metadata: Metadata = None, json: Json = False
) -> None:
    """Make what is staged on a branch sorted files, so that reading and listing are as fast as of a commit."""
    with homes.writing(lake, metadata=metadata) as home, say.progress("compacting"):
        outcome = home.repository(repository).branch(branch).compact(force=True)
    text = f"The staging area of {branch}: {outcome.outcome}."
    say.result(json, {"branch": branch, "outcome": outcome.outcome}, text)


def blame(
    lake: HomeUrl,
    repository: RepositoryName,
    reference: Reference,
    path: ObjectPath,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Show the last commit that changed an object."""
    with homes.reading(lake, metadata=metadata) as home:
        found = homes.of_commit(home.repository(repository).ref(reference).blame(path))
    text = f"{found['id'][:12]} {say.ago(found['created_ms'])} by {found['committer'] or '-'}: "
    say.result(json, found, text + say.brief(found["message"]))


# ---- inside


def _say_commit(made: Any, *, json: bool, text: str) -> None:
    say.result(json, homes.of_commit(made), text)


def _name_of(strategy: Strategy | None) -> Any:
    """The strategy as the library has it."""
    return None if strategy is None else strategy.value


def _meant(path: str | None, found: str) -> bool:
    """Whether ``--path`` means this path: PREFIX/ means all below."""
    return path is None or path.endswith("/") or found == path


def _at(path: str | None) -> str:
    return "" if path is None else f" {'below' if path.endswith('/') else 'at'} {path}"
