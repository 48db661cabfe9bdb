"""Commands of ``lakebed repo`` on versions: commit, log, show, diff, status, merge, revert, cherry-pick, reset ..."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

from lakebed.cli import json_output, output
from lakebed.cli.command import Deletion
from lakebed.cli.grammar import argument, option, pairs
from lakebed.cli.repo_checks import check_change, check_clean
from lakebed.cli.repo_context import BranchName, ObjectPath, Reference, RepositoryCommand, of_commit, print_differences
from lakebed.errors import InvalidRequest
from lakebed.texts import utc

if TYPE_CHECKING:
    from lakebed.repo.verbs.pick import PickOptions

Message = Annotated[str, option("--message", "-m", help="The commit message.")]
Meta = Annotated[list[str] | None, option("--meta", metavar="KEY=VALUE", help="Metadata of the commit.")]


AllowEmpty = Annotated[bool, option("--allow-empty", help="Commit even if nothing changed.")]
Parent = Annotated[
    int | None, option("--parent", min=1, help="Of a merge commit: the parent to compare with. 1 is the first.")
]


OnConflict = Annotated[
    Literal["source-wins", "dest-wins"] | None,
    option("--strategy", help="What to take if both sides changed a path. Default: that is a conflict."),
]


class Commit(RepositoryCommand, name="commit"):
    """Commit the uncommitted changes of a branch."""

    branch: BranchName
    message: Message
    path: Annotated[
        list[str] | None, option("--path", help="Only this path, or PREFIX/ for all below; repeat it for more.")
    ] = None
    meta: Meta = None
    allow_empty: AllowEmpty = False

    def run(self) -> None:
        paths, prefixes = _split(self.path)
        with self.writing() as repository:
            commit = repository.branch(self.branch).commit(
                self.message,
                metadata=pairs(self.meta, like="ticket=42"),
                paths=None if self.path is None else paths,
                prefixes=None if self.path is None else prefixes,
                allow_empty=self.allow_empty,
            )
        self.result(
            of_commit(commit), f"Committed {commit.id[:12]} to {self.branch}: {output.brief(commit.commit.message)}"
        )


class Log(RepositoryCommand, name="log"):
    """List commits, newest first."""

    reference: Annotated[
        str,
        argument(
            "REF",
            help="A branch, tag or commit; or a range: main~3..main is reachable from main, not from main~3.",
        ),
    ]
    path: Annotated[
        list[str] | None, option("--path", help="Only commits that changed this path, or PREFIX/ below it.")
    ] = None
    limit: Annotated[int | None, option("--limit", "-n", min=1, help="At most this many.")] = None
    first_parent: Annotated[
        bool, option("--first-parent", help="Follow only first parents: leave out merged commits.")
    ] = False

    def run(self) -> None:
        paths, prefixes = _split(self.path)
        with self.reading() as repository:
            history = repository.log(self.reference, paths=paths, prefixes=prefixes, first_parent=self.first_parent)
            records = (of_commit(commit) for commit in islice(history, self.limit))
            rows = (
                (
                    record["id"][:12],
                    output.ago(record["created_ms"]),
                    record["committer"] or "-",
                    output.brief(record["message"]),
                )
                for record in records
            )
            self.grid(
                records,
                ("commit", "created", "by", "message"),
                rows,
                less=("by", "created"),
                sentences=("message",),
                empty="No commit changed that.",
            )


class Show(RepositoryCommand, name="show"):
    """Show a commit."""

    reference: Reference

    def run(self) -> None:
        with self.reading() as repository:
            facts = of_commit(repository.ref(self.reference).head())
        if self.json:
            output.document(facts)
            return
        rows = [
            ("commit", facts["id"]),
            ("parents", ", ".join(parent[:12] for parent in facts["parents"]) or "-"),
            ("message", facts["message"]),
            ("by", facts["committer"] or "-"),
            ("created", f"{utc(facts['created_ms'])} ({output.ago(facts['created_ms'])})"),
            ("objects", f"{facts['objects']:,} ({output.size(facts['bytes'])})"),
            ("metadata", output.options_text(facts["metadata"])),
        ]
        output.facts(rows)


class Why(RepositoryCommand, name="why"):
    """Show which branches and tags keep the objects of a commit, and until when."""

    reference: Reference

    def run(self) -> None:
        with self.reading() as repository:
            explanation = repository.why_version(self.reference)
        json_output.print_explanation(explanation, json=self.json, is_version=True)


class Diff(RepositoryCommand, name="diff"):
    """Show which paths differ: + added, ~ changed, - removed, ! changed on both sides, so that a merge conflicts."""

    left: Annotated[
        str,
        argument(
            "LEFT",
            help="A reference; alone: what is uncommitted on a branch. Or a range: main~1..main compares the two as "
            "they are, main...dev shows the changes of dev since they diverged.",
        ),
    ]
    right: Annotated[str | None, argument("RIGHT", help="Another reference.")] = None
    prefix: Annotated[str, option("--prefix", help="Only paths with this prefix.")] = ""
    two_dot: Annotated[
        bool, option("--two-dot", help="LEFT against RIGHT as they are, not the changes of RIGHT since they diverged.")
    ] = False

    def run(self) -> None:
        with self.reading() as repository:
            if self.right is None and ".." not in self.left:
                differences = repository.branch(self.left).status(self.prefix)
            else:
                kind: Literal["two_dot"] | None = "two_dot" if self.two_dot else None
                differences = repository.diff(self.left, self.right, kind=kind, prefix=self.prefix)
            print_differences(differences, json=self.json, empty="No difference.")


class Status(RepositoryCommand, name="status"):
    """Show what is uncommitted on a branch."""

    branch: BranchName

    def run(self) -> None:
        with self.reading() as repository:
            differences = repository.branch(self.branch).status()
            print_differences(differences, json=self.json, empty=f"Nothing is uncommitted on {self.branch}.")


class Merge(RepositoryCommand, name="merge"):
    """Apply what another reference changed since the two diverged."""

    source: Annotated[str, argument("SOURCE", help="The reference whose changes are merged.")]
    branch: Annotated[str, argument("BRANCH", help="The branch that gets them.")]
    message: Message = ""
    strategy: OnConflict = None
    squash: Annotated[bool, option("--squash", help="One commit, without the source as a parent.")] = False
    prefix: Annotated[str, option("--prefix", help="Only what is below it.")] = ""
    meta: Meta = None
    allow_empty: AllowEmpty = False

    def run(self) -> None:
        with self.writing() as repository:
            commit = repository.branch(self.branch).merge(
                self.source,
                message=self.message or None,
                strategy=self.strategy,
                squash=self.squash,
                prefix=self.prefix,
                metadata=pairs(self.meta, like="ticket=42"),
                allow_empty=self.allow_empty,
            )
        self.result(of_commit(commit), f"Merged {self.source} into {self.branch}: commit {commit.id[:12]}.")


class Pick(RepositoryCommand):
    """A command on the changes of one commit."""

    branch: BranchName
    reference: Reference
    parent: Parent = None
    strategy: OnConflict = None

    def options(self) -> PickOptions:
        """Return the options in the library's form."""
        return {"parent_number": self.parent, "strategy": self.strategy}


class Revert(Pick, name="revert"):
    """Undo one commit with a new commit; the history is kept."""

    def run(self) -> None:
        with self.writing() as repository:
            commit = repository.branch(self.branch).revert(self.reference, **self.options())
        self.result(of_commit(commit), f"Reverted {self.reference} on {self.branch}: commit {commit.id[:12]}.")


class CherryPick(Pick, name="cherry-pick"):
    """Apply the changes of one commit to a branch."""

    def run(self) -> None:
        with self.writing() as repository:
            commit = repository.branch(self.branch).cherry_pick(self.reference, **self.options())
        self.result(of_commit(commit), f"Picked {self.reference} onto {self.branch}: commit {commit.id[:12]}.")


class Reset(Deletion, RepositoryCommand, name="reset", frees_space=True):
    """Discard uncommitted changes of a branch, all or below a path; --hard moves the branch."""

    branch: BranchName
    path: Annotated[str | None, option("--path", help="Only this path, or PREFIX/ for all below.")] = None
    hard: Annotated[str | None, option("--hard", metavar="REF", help="Move the branch itself to this commit.")] = None

    def run(self) -> None:
        if self.path is not None and self.hard is not None:
            raise InvalidRequest("Give --path or --hard, not both.", kind="usage")
        if self.dry_run:
            with self.reading() as repository:
                check_change(repository, self.branch, "commit" if self.hard else "staging_write")
                if self.hard:
                    check_clean(repository, self.branch, operation="hard reset")
                    every = repository.diff(self.hard, self.branch, kind="two_dot")
                else:
                    every = repository.branch(self.branch).status(self.path or "")
                differences = (difference for difference in every if _is_selected(self.path, difference.path))
                print_differences(differences, json=self.json, empty="Nothing would be discarded.")
            return
        self.ask(
            f"Move {self.branch} to {self.hard}?" if self.hard else f"Discard uncommitted changes on {self.branch}?"
        )
        with self.writing() as repository:
            target = repository.branch(self.branch)
            has_changes = any(_is_selected(self.path, difference.path) for difference in target.status(self.path or ""))
            if self.hard is not None:
                target.hard_reset(self.hard)
            elif self.path is not None and self.path.endswith("/"):
                target.reset(prefix=self.path)
            else:
                target.reset(path=self.path)
            commit_id = target.commit_id
        outcome = "Discarded uncommitted changes" if has_changes else "Nothing was uncommitted"
        sentence = (
            f"{self.branch} is at {commit_id[:12]} now."
            if self.hard
            else f"{outcome}{_at(self.path)} on {self.branch}."
        )
        self.result({"branch": self.branch, "commit": commit_id, "dry_run": False}, sentence)


class Rebase(RepositoryCommand, name="rebase"):
    """Make a branch's own commits again on top of another reference."""

    branch: BranchName
    onto: Annotated[str, argument("ONTO", help="The new base.")]
    strategy: OnConflict = None

    def run(self) -> None:
        with self.writing() as repository:
            report = repository.branch(self.branch).rebase(self.onto, strategy=self.strategy)
        self.result(of_commit(report), f"Rebased {self.branch} onto {self.onto}: it is at {report.id[:12]} now.")


class Compact(RepositoryCommand, name="compact"):
    """Write the staged changes of a branch into sorted files, so that reads are as fast as those of a commit."""

    branch: BranchName

    def run(self) -> None:
        with self.writing() as repository, output.progress("compacting"):
            outcome = repository.branch(self.branch).compact(force=True)
        text = f"The staging area of {self.branch}: {outcome.outcome}."
        self.result({"branch": self.branch, "outcome": outcome.outcome}, text)


class Blame(RepositoryCommand, name="blame"):
    """Show the last commit that changed an object."""

    reference: Reference
    path: ObjectPath

    def run(self) -> None:
        with self.reading() as repository:
            facts = of_commit(repository.ref(self.reference).blame(self.path))
        text = f"{facts['id'][:12]} {output.ago(facts['created_ms'])} by {facts['committer'] or '-'}: "
        self.result(facts, text + output.brief(facts["message"]))


def _split(texts: list[str] | None) -> tuple[list[str], list[str]]:
    """Split ``--path`` into paths and prefixes. A text that ends with a slash is a prefix."""
    every = texts or []
    return [text for text in every if not text.endswith("/")], [text for text in every if text.endswith("/")]


def _is_selected(path: str | None, candidate: str) -> bool:
    """Whether ``--path`` selects this path. PREFIX/ selects everything below it."""
    return path is None or path.endswith("/") or candidate == path


def _at(path: str | None) -> str:
    return "" if path is None else f" {'below' if path.endswith('/') else 'at'} {path}"
