"""Commands of ``lakebed repo`` on branches and tags."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any

from lakebed.cli import output
from lakebed.cli.command import Deletion
from lakebed.cli.grammar import argument, option
from lakebed.cli.repo_checks import check_change, tag_to_drop
from lakebed.cli.repo_context import BranchName, RepositoryCommand

TagName = Annotated[str, argument("TAG", help="The tag.")]


class ListBranches(RepositoryCommand, name="branches"):
    """List the branches and their newest commits."""

    prefix: Annotated[str, option("--prefix", help="Only names with this prefix.")] = ""

    def run(self) -> None:
        with self.reading() as repository:
            rules = [rule.pattern for rule in repository.protected()]
            records: list[dict[str, Any]] = [
                {
                    "branch": branch.name,
                    "commit": branch.commit_id,
                    "protected": any(fnmatchcase(branch.name, pattern) for pattern in rules),
                }
                for branch in repository.branches(prefix=self.prefix)
            ]
        self.grid(
            records,
            ("branch", "commit", ""),
            [
                (record["branch"], record["commit"][:12], "protected" if record["protected"] else "")
                for record in records
            ],
            empty="No branch with such a name.",
        )


class CreateBranch(RepositoryCommand, name="branch"):
    """Create a branch at a commit. Cost: one small record, whatever the size of the commit."""

    name: BranchName
    source: Annotated[
        str | None, option("--source", help="Start from this reference. Default: the default branch.")
    ] = None

    def run(self) -> None:
        with self.writing() as repository:
            branch = repository.create_branch(self.name, version=self.source)
            facts = {"branch": branch.name, "commit": branch.commit_id}
        self.result(facts, f"Created the branch {self.name} at {facts['commit'][:12]}.")


class DropBranch(Deletion, RepositoryCommand, name="drop-branch", frees_space=True):
    """Drop a branch with what is uncommitted on it; `undelete-branch` restores its commits for some days."""

    name: BranchName

    def run(self) -> None:
        if self.dry_run:
            with self.reading() as repository:
                check_change(repository, self.name, "delete")
                count = sum(1 for _ in repository.branch(self.name).status())
            text = f"Would drop the branch {self.name}, with {output.count(count, 'uncommitted change')}."
            self.result({"branch": self.name, "dry_run": True, "uncommitted": count}, text)
            return
        self.ask(f"Drop the branch {self.name} of {self.repository} with what is uncommitted on it?")
        with self.writing() as repository:
            repository.delete_branch(self.name)
        self.result({"branch": self.name, "dry_run": False}, f"Dropped the branch {self.name}.")


class UndeleteBranch(RepositoryCommand, name="undelete-branch"):
    """Restore a dropped branch at its last commit; uncommitted changes are lost."""

    name: BranchName

    def run(self) -> None:
        with self.writing() as repository:
            branch = repository.undelete_branch(self.name)
            facts = {"branch": branch.name, "commit": branch.commit_id}
        self.result(facts, f"The branch {self.name} is back at {facts['commit'][:12]}.")


class Protect(RepositoryCommand, name="protect"):
    """Refuse deletions of branches that match, and all writes and commits to them except merges."""

    pattern: Annotated[str, argument("PATTERN", help="A branch, or a pattern such as 'release-*'.")]
    off: Annotated[bool, option("--off", help="Remove the protection.")] = False

    def run(self) -> None:
        with self.writing() as repository:
            if self.off:
                repository.unprotect(self.pattern)
            else:
                repository.protect(self.pattern)
            patterns = [rule.pattern for rule in repository.protected()]
        text = f"Protected: {', '.join(patterns)}." if patterns else "No branch is protected."
        self.result({"protected": patterns}, text)


class ListTags(RepositoryCommand, name="tags"):
    """List the tags and the commits that they pin."""

    def run(self) -> None:
        with self.reading() as repository:
            records = [{"tag": tag.name, "commit": tag.commit_id} for tag in repository.tags()]
        empty = f"No tag. Create one: lakebed repo tag {self.lake} {self.repository} TAG"
        self.grid(
            records, ("tag", "commit"), [(record["tag"], record["commit"][:12]) for record in records], empty=empty
        )


class CreateTag(RepositoryCommand, name="tag"):
    """Pin a commit under a name: its objects stay until the tag is deleted."""

    name: TagName
    reference: Annotated[str | None, argument("REF", help="A branch, tag or commit. Default: the default branch.")] = (
        None
    )

    def run(self) -> None:
        with self.writing() as repository:
            tag = repository.create_tag(self.name, ref=self.reference)
            facts = {"tag": self.name, "commit": tag.commit_id}
        self.result(facts, f"The tag {self.name} pins {facts['commit'][:12]}.")


class DropTag(Deletion, RepositoryCommand, name="drop-tag", frees_space=True):
    """Drop a tag: a later collection deletes what only it pinned."""

    name: TagName

    def run(self) -> None:
        if self.dry_run:
            with self.reading() as repository:
                commit_id = tag_to_drop(repository, self.name).commit_id
            self.result(
                {"tag": self.name, "dry_run": True, "commit": commit_id},
                f"Would drop the tag {self.name}, which pins {commit_id[:12]}.",
            )
            return
        self.ask(f"Drop the tag {self.name} of {self.repository}?")
        with self.writing() as repository:
            repository.delete_tag(self.name)
        self.result({"tag": self.name, "dry_run": False}, f"Dropped the tag {self.name}.")
