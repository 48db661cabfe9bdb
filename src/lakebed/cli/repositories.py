"""The group ``lakebed repo``: making, listing and dropping repositories; branches, tags, protection, retention, gc.

What is done to objects is in `repository_objects.py`, to versions in `repository_versions.py`. Every command takes the
lake first, then the repository; a lake may be the URL of a server, ``http://127.0.0.1:8000``.
"""

from __future__ import annotations

from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Any

from lakebed.cli import args, facts, homes, repository_directories, repository_objects, repository_versions, say
from lakebed.cli.args import DryRun, Json, Yes
from lakebed.cli.grammar import Group, argument, option
from lakebed.cli.homes import HomeUrl, Metadata, RepositoryName

__all__ = ["app"]

app = Group("repo", "Repositories: branches, commits, merges over a data lake, and cleaning up behind them.")

BranchName = Annotated[str, argument("BRANCH", help="The branch.")]
TagName = Annotated[str, argument("TAG", help="The tag.")]


# ---- repositories


@app.command("create")
def create(
    lake: HomeUrl,
    repository: RepositoryName,
    namespace: Annotated[
        str | None, option("--namespace", help="Where its objects lie, inside the lake. Default: NAME.repo.")
    ] = None,
    default_branch: Annotated[str, option("--default-branch", help="The branch that it begins with.")] = "main",
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Make a repository, with one empty commit on its default branch."""
    from lakebed.repo.names import check_branch_name, check_repository_name  # `lakebed --help` needs no repository

    check_repository_name(repository)  # before the lake is made: a mistake makes none
    check_branch_name(default_branch)
    with homes.writing(lake, metadata=metadata, create=True) as home:
        made = home.create(repository, namespace=namespace, default_branch=default_branch)
        found = homes.of_repository(made)
    say.result(json, found, f"Made the repository {repository} with the branch {default_branch}.")


@app.command("list")
def list_repositories(lake: HomeUrl, metadata: Metadata = None, json: Json = False) -> None:
    """List the repositories."""
    with homes.reading(lake, metadata=metadata) as home:
        found = [homes.of_repository(one) for one in home.list()]
    if json:
        say.document(found)
        return
    say.grid(
        ("repository", "default branch", "made", "where"),
        [(one["name"], one["default_branch"], say.ago(one["created_ms"]), one["url"]) for one in found],
        less=("made", "default branch"),
        empty=f"No repository. Make one: lakebed repo create {lake} NAME",
    )


@app.command("drop", formerly=["delete"])
def delete(
    lake: HomeUrl,
    repository: RepositoryName,
    dry_run: DryRun = False,
    yes: Yes = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Drop a repository with all its branches and tags; the next gc of the lake frees what it held."""
    if dry_run:
        with homes.reading(lake, metadata=metadata) as home:
            opened = home.repository(repository)
            counts = {"branches": len(list(opened.branches())), "tags": len(list(opened.tags()))}
        text = f"Would drop {repository} with {say.count(counts['branches'], 'branch', 'branches')} and "
        say.result(
            json, {"repository": repository, "dry_run": True, **counts}, f"{text}{say.count(counts['tags'], 'tag')}."
        )
        return
    say.ask(f"Drop the repository {repository} with all its branches and tags?", yes=yes, json=json)
    with homes.writing(lake, metadata=metadata) as home:
        home.delete(repository)
    say.result(json, {"repository": repository, "dry_run": False}, f"Dropped the repository {repository}.")


# ---- branches


@app.command("branches", formerly=["branch list"])
def list_branches(
    lake: HomeUrl,
    repository: RepositoryName,
    prefix: Annotated[str, option("--prefix", help="Only names that begin so.")] = "",
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """List the branches and the commits that they are at."""
    with homes.reading(lake, metadata=metadata) as home:
        opened = home.repository(repository)
        rules = [rule.pattern for rule in opened.protected()]
        found: list[dict[str, Any]] = [
            {
                "branch": one.name,
                "commit": one.commit_id,
                "protected": any(fnmatchcase(one.name, pattern) for pattern in rules),
            }
            for one in opened.branches(prefix=prefix)
        ]
    if json:
        say.document(found)
        return
    say.grid(
        ("branch", "commit", ""),
        [(one["branch"], one["commit"][:12], "protected" if one["protected"] else "") for one in found],
        empty="No branch of such a name.",
    )


@app.command("branch", formerly=["branch create"])
def create_branch(
    lake: HomeUrl,
    repository: RepositoryName,
    name: BranchName,
    source: Annotated[
        str | None, option("--source", help="Begin at this reference. Default: the default branch.")
    ] = None,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Make a branch at a commit: it costs one small record, however much the commit holds."""
    with homes.writing(lake, metadata=metadata) as home:
        made = home.repository(repository).create_branch(name, source=source)
        found = {"branch": made.name, "commit": made.commit_id}
    say.result(json, found, f"Made the branch {name} at {found['commit'][:12]}.")


@app.command("drop-branch", formerly=["branch delete"])
def delete_branch(
    lake: HomeUrl,
    repository: RepositoryName,
    name: BranchName,
    dry_run: DryRun = False,
    yes: Yes = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Drop a branch with what is uncommitted on it; `undelete` brings its commits back for some days."""
    if dry_run:
        with homes.reading(lake, metadata=metadata) as home:
            count = sum(1 for _ in home.repository(repository).branch(name).status())
        text = f"Would drop the branch {name}, with {say.count(count, 'uncommitted change')}."
        say.result(json, {"branch": name, "dry_run": True, "uncommitted": count}, text)
        return
    say.ask(f"Drop the branch {name} of {repository} with what is uncommitted on it?", yes=yes, json=json)
    with homes.writing(lake, metadata=metadata) as home:
        home.repository(repository).delete_branch(name)
    say.result(json, {"branch": name, "dry_run": False}, f"Dropped the branch {name}.")


@app.command("undelete-branch", formerly=["branch undelete"])
def undelete_branch(
    lake: HomeUrl, repository: RepositoryName, name: BranchName, metadata: Metadata = None, json: Json = False
) -> None:
    """Bring a dropped branch back at the commit that it was at; what was uncommitted is gone."""
    with homes.writing(lake, metadata=metadata) as home:
        made = home.repository(repository).undelete_branch(name)
        found = {"branch": made.name, "commit": made.commit_id}
    say.result(json, found, f"The branch {name} is back at {found['commit'][:12]}.")


@app.command("protect", formerly=["branch protect"])
def protect(
    lake: HomeUrl,
    repository: RepositoryName,
    pattern: Annotated[str, argument("PATTERN", help="A branch, or a pattern such as 'release-*'.")],
    off: Annotated[bool, option("--off", help="Take the protection away.")] = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Refuse writes and commits to branches but by merging, and their deletion."""
    with homes.writing(lake, metadata=metadata) as home:
        opened = home.repository(repository)
        if off:
            opened.unprotect(pattern)
        else:
            opened.protect(pattern)
        found = [rule.pattern for rule in opened.protected()]
    text = f"Protected: {', '.join(found)}." if found else "No branch is protected."
    say.result(json, {"protected": found}, text)


# ---- tags


@app.command("tags", formerly=["tag list"])
def list_tags(lake: HomeUrl, repository: RepositoryName, metadata: Metadata = None, json: Json = False) -> None:
    """List the tags and the commits that they pin."""
    with homes.reading(lake, metadata=metadata) as home:
        found = [{"tag": one.name, "commit": one.commit_id} for one in home.repository(repository).tags()]
    if json:
        say.document(found)
        return
    empty = f"No tag. Make one: lakebed repo tag {lake} {repository} TAG"
    say.grid(("tag", "commit"), [(one["tag"], one["commit"][:12]) for one in found], empty=empty)


@app.command("tag", formerly=["tag create"])
def create_tag(
    lake: HomeUrl,
    repository: RepositoryName,
    name: TagName,
    reference: Annotated[
        str | None, argument("REF", help="A branch, tag or commit. Default: the default branch.")
    ] = None,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Pin a commit under a name: its objects stay until the tag is deleted."""
    with homes.writing(lake, metadata=metadata) as home:
        made = home.repository(repository).create_tag(name, ref=reference)
        found = {"tag": name, "commit": made.commit_id}
    say.result(json, found, f"The tag {name} pins {found['commit'][:12]}.")


@app.command("drop-tag", formerly=["tag delete"])
def delete_tag(
    lake: HomeUrl,
    repository: RepositoryName,
    name: TagName,
    dry_run: DryRun = False,
    yes: Yes = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Remove a tag: what only it pinned goes with a later gc."""
    if dry_run:
        with homes.reading(lake, metadata=metadata) as home:
            found = home.repository(repository).ref(name).head().id
        say.result(
            json, {"tag": name, "dry_run": True, "commit": found}, f"Would remove the tag {name} of {found[:12]}."
        )
        return
    say.ask(f"Remove the tag {name} of {repository}?", yes=yes, json=json)
    with homes.writing(lake, metadata=metadata) as home:
        home.repository(repository).delete_tag(name)
    say.result(json, {"tag": name, "dry_run": False}, f"Removed the tag {name}.")


# ---- retention and collection


@app.command("retention", formerly=["retention show"])
def show_retention(lake: HomeUrl, repository: RepositoryName, metadata: Metadata = None, json: Json = False) -> None:
    """Show the rules."""
    with homes.reading(lake, metadata=metadata) as home:
        rules = home.repository(repository).retention()
    found: dict[str, Any] = {"default_days": None, "branch_days": {}}
    if rules is not None:
        found = {"default_days": rules.default_days, "branch_days": dict(rules.branch_days)}
    if json:
        say.document(found)
        return
    rows = [] if rules is None else [(one, say.count(days, "day")) for one, days in sorted(rules.branch_days.items())]
    rows.append(("(others)", "for ever" if rules is None else say.count(rules.default_days, "day")))
    say.grid(("branch", "commits keep their objects"), rows, empty="")


@app.command("set-retention", formerly=["retention set"])
def set_retention(
    lake: HomeUrl,
    repository: RepositoryName,
    default_days: Annotated[int, argument("DAYS", help="For branches without a rule of their own.")],
    branch_days: Annotated[
        list[str] | None, option("--branch-days", metavar="BRANCH=DAYS", help="For one branch; again for more.")
    ] = None,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Replace the rules: a commit loses its objects so long after another one took its place as a branch's newest."""
    days = homes.days_of(branch_days)
    with homes.writing(lake, metadata=metadata) as home:
        home.repository(repository).set_retention(default_days=default_days, branch_days=days)
    found = {"default_days": default_days, "branch_days": days}
    text = f"Commits of {repository} keep their objects for {say.count(default_days, 'day')}"
    text += "".join(f", on {one} for {say.count(own, 'day')}" for one, own in sorted(days.items()))
    say.result(json, found, f"{text}.")


@app.command("drop-retention", formerly=["retention delete"])
def delete_retention(
    lake: HomeUrl,
    repository: RepositoryName,
    dry_run: DryRun = False,
    yes: Yes = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Remove the rules: every commit that can be reached keeps its objects for ever."""
    if not dry_run:
        say.ask(f"Remove the rules of retention of {repository}?", yes=yes, json=json)
        with homes.writing(lake, metadata=metadata) as home:
            home.repository(repository).delete_retention()
    text = f"{'Would remove' if dry_run else 'Removed'} the rules of retention of {repository}."
    say.result(json, {"repository": repository, "dry_run": dry_run}, text)


@app.command("collect", formerly=["gc"])
def collect(
    lake: HomeUrl,
    repository: RepositoryName,
    min_age: Annotated[
        str, option("--min-age", metavar="AGE", help="Spare uploads that are younger: '6h', '1 d'.")
    ] = "1 d",
    dry_run: DryRun = False,
    yes: Yes = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Delete objects that no branch, tag, kept commit or staged entry needs. Imported objects are never deleted."""
    from lakebed.repo.options import CollectionOptions

    age_ms = args.duration_ms(min_age) or 0
    if not dry_run:
        say.ask(f"Collect the garbage of {repository}? (--dry-run shows what would go.)", yes=yes, json=json)
    with homes.writing(lake, metadata=metadata) as home, say.progress("collecting") as progress:
        options = CollectionOptions(min_age=timedelta(milliseconds=age_ms))
        report = home.repository(repository).collect_garbage(options, dry_run=dry_run, progress=progress)
    facts.print_reports([report], json=json, single=True)


repository_directories.register(app)
repository_objects.register(app)
repository_versions.register(app)
