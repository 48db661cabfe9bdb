"""Commands of ``lakebed repo`` on whole repositories: create, list, drop, retention, collect."""

from __future__ import annotations

from typing import Annotated, Any

from lakebed.cli import json_output, output
from lakebed.cli.arguments import duration
from lakebed.cli.command import Deletion
from lakebed.cli.grammar import argument, option, pairs
from lakebed.cli.repo_context import RepositoriesCommand, RepositoryCommand
from lakebed.errors import InvalidRequest
from lakebed.repo.model.names import check_branch_name, check_repository_name
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.repository import Repository
from lakebed.repo.transport.catalog import read_only_error
from lakebed.texts import format_value, whole_number


class Create(RepositoryCommand, name="create"):
    """Create a repository, with one empty commit on its default branch."""

    namespace: Annotated[
        str | None, option("--namespace", help="Where its objects are, inside the lake. Default: NAME.repo.")
    ] = None
    default_branch: Annotated[str, option("--default-branch", help="Its first branch.")] = "main"

    def run(self) -> None:
        check_repository_name(self.repository)  # before the lake is created, so that a mistake creates none
        check_branch_name(self.default_branch)
        self.refuse_other_folder()
        with self.writing_all(create=True) as repositories:
            repository = repositories.create(
                self.repository, namespace=self.namespace, default_branch=self.default_branch
            )
            facts = _facts(repository)
        self.result(facts, f"Created the repository {self.repository} with the branch {self.default_branch}.")


class ListRepositories(RepositoriesCommand, name="list"):
    """List the repositories."""

    def run(self) -> None:
        with self.reading_all() as repositories:
            records = [_facts(repository) for repository in repositories.list()]
        self.grid(
            records,
            ("repository", "default branch", "created", "where"),
            [
                (record["name"], record["default_branch"], output.ago(record["created_ms"]), record["url"])
                for record in records
            ],
            less=("created", "default branch"),
            empty=f"No repository. Create one: lakebed repo create {self.lake} NAME",
        )


class Drop(Deletion, RepositoryCommand, name="drop", frees_space=True):
    """Drop a repository with all its branches and tags; a collection of the lake, a day later, deletes what it held."""

    force: Annotated[bool, option("--force", help="Drop a read-only repository too.")] = False

    def run(self) -> None:
        if self.dry_run:
            with self.reading() as repository:
                if repository.is_read_only and not self.force:
                    raise read_only_error(self.repository)
                counts = {"branches": len(list(repository.branches())), "tags": len(list(repository.tags()))}
            text = f"Would drop {self.repository} with {output.count(counts['branches'], 'branch', 'branches')} and "
            self.result(
                {"repository": self.repository, "dry_run": True, **counts},
                f"{text}{output.count(counts['tags'], 'tag')}.",
            )
            return
        self.ask(f"Drop the repository {self.repository} with all its branches and tags?")
        with self.writing_all() as repositories:
            repositories.delete(self.repository, force=self.force)
        self.result({"repository": self.repository, "dry_run": False}, f"Dropped the repository {self.repository}.")


class ShowRetention(RepositoryCommand, name="retention"):
    """Show the retention rules."""

    def run(self) -> None:
        with self.reading() as repository:
            rules = repository.retention()
        facts: dict[str, Any] = {"default_days": None, "branch_days": {}}
        if rules is not None:
            facts = {"default_days": rules.default_days, "branch_days": dict(rules.branch_days)}
        if self.json:
            output.document(facts)
            return
        rows = [(branch, output.count(days, "day")) for branch, days in sorted(facts["branch_days"].items())]
        rows.append(("(others)", "without a limit" if rules is None else output.count(rules.default_days, "day")))
        output.grid(("branch", "commits keep their objects"), rows, empty="")


class SetRetention(RepositoryCommand, name="set-retention", frees_space=True):
    """Replace the retention rules: a commit keeps its objects this long after a newer one replaced it."""

    default_days: Annotated[int, argument("DAYS", help="Days for branches without a rule of their own.")]
    branch_days: Annotated[
        list[str] | None, option("--branch-days", metavar="BRANCH=DAYS", help="For one branch; repeat it for more.")
    ] = None

    def run(self) -> None:
        days = _days_of(self.branch_days)
        with self.writing() as repository:
            repository.set_retention(default_days=self.default_days, branch_days=days)
        facts = {"default_days": self.default_days, "branch_days": days}
        text = f"Commits of {self.repository} keep their objects for {output.count(self.default_days, 'day')}"
        text += "".join(
            f", on {branch} for {output.count(day_count, 'day')}" for branch, day_count in sorted(days.items())
        )
        self.result(facts, f"{text}.")


class DropRetention(Deletion, RepositoryCommand, name="drop-retention"):
    """Drop the retention rules: every reachable commit keeps its objects without a limit."""

    def run(self) -> None:
        if not self.dry_run:
            self.ask(f"Drop the retention rules of {self.repository}?")
            with self.writing() as repository:
                repository.delete_retention()
        text = f"{'Would drop' if self.dry_run else 'Dropped'} the retention rules of {self.repository}."
        self.result({"repository": self.repository, "dry_run": self.dry_run}, text)


class Collect(Deletion, RepositoryCommand, name="collect", frees_space=True):
    """Delete objects that no branch, tag, kept commit or staged entry needs. Imported objects are never deleted."""

    grace: Annotated[str, option("--grace", metavar="AGE", help="Keep uploads that are younger: '6h', '1 d'.")] = "1 d"

    def run(self) -> None:
        options = CollectionOptions(grace=duration(self.grace))
        self.ask(f"Collect the garbage of {self.repository}? (--dry-run shows what would be deleted.)")
        opening = self.reading if self.dry_run else self.writing
        with opening() as repository, output.progress("collecting") as progress:
            report = repository.collect(options, dry_run=self.dry_run, progress=progress)
        json_output.print_report(report, json=self.json)


def _facts(repository: Repository) -> dict[str, Any]:
    return {
        "name": repository.name,
        "default_branch": repository.default_branch,
        "created_ms": repository.created_at_ms,
        "url": repository.url,
    }


def _days_of(texts: list[str] | None) -> dict[str, int]:
    """Parse ``["main=30"]`` as a dictionary. Raises `InvalidRequest`."""
    by_branch: dict[str, int] = {}
    for name, days in pairs(texts, like="main=30").items():
        number = whole_number(days, minimum=1)
        if number is None:
            raise InvalidRequest(
                f"{format_value(days)} is not a valid number of days: write --branch-days {name}=30.",
                kind="invalid_days",
            )
        by_branch[name] = number
    return by_branch
