"""Run actions: call the webhooks that the files below ``_lakefs_actions/`` of a commit name.

Owns: when actions run, and in which order. For a commit or a merge, the files are those of the new commit. For a branch
or tag that is created or deleted, they are those of its commit. Invariants:

- If a hook of a ``pre-`` event fails, or a file cannot be used, the change is refused and nothing has changed. A
  failure of a ``post-`` event is only recorded.
- A URL is reached by the rules of webhooks (`lakebed.repo.outside.outbound`).
- Hooks run outside every lock. If an operation begins again, its ``pre-`` hooks run again, and each time is recorded as
  a separate run.

Nothing runs unless `RepositoryOptions.run_actions` is set, which a server does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from lakebed.errors import Conflict, InvalidRequest, LakebedError, Rejected
from lakebed.log import logger
from lakebed.repo.model.actions import (
    ACTION_BYTES_MAX,
    ACTION_FILES_MAX,
    ACTIONS_PREFIX,
    Action,
    ActionEvent,
    ActionHook,
    parse_action,
)
from lakebed.repo.model.entry import decode_entry
from lakebed.repo.model.model import Branch, Entry, MetarangeRef, Tag
from lakebed.repo.model.names import parse_reference
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.objects import data
from lakebed.repo.outside.outbound import post
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.hooks import FAILURES, redact_url
from lakebed.repo.records.runs import ActionRun, HookRun, cut_output, new_run_id, store_run, trim_runs
from lakebed.repo.references import branches, tags
from lakebed.repo.references.commits import load_commit
from lakebed.repo.references.refs import resolve_commit

_LOG: Final = logger("repo")
_TRIM_ONE_IN: Final = 16
"""One of this many runs deletes old runs: so the limits hold approximately, at a sixteenth of the cost."""

HOOKS_MS_MAX: Final = 5 * 60_000
"""Most time that all hooks of one event may take together."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Occasion:
    """An event, with the data that hooks get.

    Attributes:
        state: the metarange that has the files of actions.
        branch: the branch of the event; empty for tags.
        commit_id: the new commit, or the commit of the branch or tag.
        source: the reference that is merged, or at which a branch begins.
    """

    event: ActionEvent
    state: MetarangeRef
    branch: str = ""
    tag: str = ""
    commit_id: str = ""
    source: str = ""
    message: str = ""
    committer: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


class EventBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body that a webhook gets, with lakeFS's names."""

    event_type: str
    event_time: str
    action_name: str
    hook_id: str
    repository_id: str
    branch_id: str = ""
    source_ref: str = ""
    tag_id: str = ""
    commit_id: str = ""
    commit_message: str = ""
    committer: str = ""
    commit_metadata: dict[str, str] = {}
    merge_source: str = ""


def run_before(context: RepositoryContext, occasion: Occasion) -> None:
    """Run the actions of a ``pre-`` event.

    Raises:
        Rejected: kind ``hook_rejected``: a hook failed, or a file of actions cannot be used.
    Cost: reads the files of actions, if there are any; with hooks 2 writes and their requests.
    """
    if not context.options.run_actions:
        return
    run_id, run = _run(context, occasion)
    failure = next((hook for hook in run.hooks if not hook.passed), None)
    if failure is not None:
        raise Rejected(
            f"The {occasion.event} hook {failure.hook_id!r} of the action {failure.action!r} failed, so nothing was "
            f"changed: see run {run_id} of the actions of repository {context.name}.",
            kind="hook_rejected",
            hook=failure.hook_id,
            event=occasion.event,
            run=run_id,
        )


def run_after(context: RepositoryContext, occasion: Occasion) -> None:
    """Run the actions of a ``post-`` event. Never raises a `LakebedError`: failures are recorded and logged."""
    if not context.options.run_actions:
        return
    try:
        _run(context, occasion)
    except LakebedError as error:
        FAILURES.add(1, occasion.event)
        _LOG.info("actions failed", event=occasion.event, error=error.message)


def _run(context: RepositoryContext, occasion: Occasion) -> tuple[str, ActionRun]:
    """Run the actions of an event, and record the run. Without actions and unusable files, nothing is recorded.

    Returns:
        The id of the recorded run, or ``""``, and the run.
    """
    actions, problems = _load_actions(context, occasion.state)
    concerned = [action for action in actions if action.concerns(occasion.event, occasion.branch)]
    run = ActionRun(occasion.event, occasion.branch, occasion.commit_id, context.now_ms())
    if not concerned and not problems:
        return "", run
    run_id = new_run_id(context)
    store_run(context, run_id, run)
    now_ms = context.now_ms()
    hooks = [HookRun(file, "file", now_ms, now_ms, passed=False, output=cut_output(text)) for file, text in problems]
    end_ms = now_ms + HOOKS_MS_MAX
    for action in concerned:
        hooks += _run_hooks(context, occasion, action, end_ms=end_ms)
    run = msgspec.structs.replace(
        run, ended_at_ms=context.now_ms(), passed=all(hook.passed for hook in hooks), hooks=tuple(hooks)
    )
    store_run(context, run_id, run)
    FAILURES.add(sum(not hook.passed for hook in hooks), occasion.event)
    if context.environment.rng.randrange(_TRIM_ONE_IN) == 0:
        trim_runs(context)
    return run_id, run


def _load_actions(context: RepositoryContext, state: MetarangeRef) -> tuple[list[Action], list[tuple[str, str]]]:
    """Load the actions of a state. Also returns the files that cannot be used, each with the reason."""
    actions: list[Action] = []
    problems: list[tuple[str, str]] = []
    for path, entry in _files(context, state):
        try:
            if entry.size_bytes > ACTION_BYTES_MAX:
                raise InvalidRequest(
                    f"The action {path} cannot be used: it has more than {ACTION_BYTES_MAX:,} bytes. Change the file.",
                    kind="invalid_action",
                )
            raw = b"" if entry.size_bytes == 0 else bytes(data.read(context, entry))
            actions.append(parse_action(raw, file=path))
        except InvalidRequest as error:
            problems.append((path, error.message))
    return actions, problems


def _files(context: RepositoryContext, state: MetarangeRef) -> list[tuple[str, Entry]]:
    """Paths and entries of the files of actions, in order: all files below the prefix, with any name, as in lakeFS."""
    begin, end = prefix_range(ACTIONS_PREFIX.encode())
    files: list[tuple[str, Entry]] = []
    for batch in context.committed.open(state).rows(begin, end):
        for path, value in zip(batch.column("path").to_pylist(), batch.column("value").to_pylist(), strict=True):
            name = path.decode()
            files.append((name, decode_entry(value, where=name)))
        if len(files) > ACTION_FILES_MAX:
            raise Rejected(
                f"There are more than {ACTION_FILES_MAX} files of actions below {ACTIONS_PREFIX}: delete some.",
                kind="hook_rejected",
            )
    return files


def _run_hooks(context: RepositoryContext, occasion: Occasion, action: Action, *, end_ms: int) -> list[HookRun]:
    """Run the hooks of an action, one after the other."""
    runs: list[HookRun] = []
    for hook in action.hooks:
        has_failed = any(not run.passed for run in runs)
        is_due = {"failure()": has_failed, "always()": True}.get(hook.condition, not has_failed)
        if is_due:
            runs.append(_run_hook(context, occasion, action, hook, end_ms=end_ms))
    return runs


def _run_hook(
    context: RepositoryContext, occasion: Occasion, action: Action, hook: ActionHook, *, end_ms: int
) -> HookRun:
    started_ms = context.now_ms()
    left_ms = end_ms - started_ms
    lines, has_passed = [hook.refusal], False
    if not hook.refusal and left_ms <= 0:
        lines = [f"was not called: the hooks before it took the {HOOKS_MS_MAX // 60_000} minutes of all of an event"]
    elif not hook.refusal:
        shown_url = redact_url(hook.url)
        lines = [f"POST {shown_url}", f"timeout: {hook.timeout_ms:,} ms"]
        lines += [f"header: {name}" for name, _ in hook.headers]
        body = _body(context, occasion, action, hook)
        lines.append(f"body: {body.decode()}")
        try:
            status = post(
                hook.url,
                body,
                timeout_ms=min(hook.timeout_ms, left_ms),
                allowed=context.hooks.allowed,
                owner=context.name,
                headers=dict(hook.headers),
            )
        except LakebedError as error:
            lines.append(f"failed: {shown_url} {error.message}")
        else:
            has_passed = 200 <= status < 300
            lines.append(f"{'passed' if has_passed else 'failed'}: {shown_url} answered {status}")
    ended_ms = context.now_ms()
    lines.append(f"took: {ended_ms - started_ms:,} ms")
    output = cut_output("\n".join(lines) + "\n")
    return HookRun(action.name, hook.id, started_ms, ended_ms, passed=has_passed, output=output)


def _body(context: RepositoryContext, occasion: Occasion, action: Action, hook: ActionHook) -> bytes:
    is_merge = occasion.event.endswith("-merge")
    time = datetime.fromtimestamp(context.now_ms() / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return msgspec.json.encode(
        EventBody(
            event_type=occasion.event,
            event_time=time,
            action_name=action.name,
            hook_id=hook.id,
            repository_id=context.name,
            branch_id=occasion.branch,
            source_ref=occasion.source or occasion.commit_id,
            tag_id=occasion.tag,
            commit_id=occasion.commit_id,
            commit_message=occasion.message,
            committer=occasion.committer,
            commit_metadata=occasion.metadata,
            merge_source=occasion.source if is_merge else "",
        )
    )


def _around(context: RepositoryContext, occasion: Occasion, after: ActionEvent, change: Callable[[], T]) -> T:
    run_before(context, occasion)
    result = change()
    run_after(context, replace(occasion, event=after))
    return result


def create_branch(
    context: RepositoryContext, name: str, *, source: str, hidden: bool = False, committer: str = ""
) -> Branch:
    """As `lakebed.repo.references.branches.create_branch`, with actions. Also raises `Rejected`."""

    def create(at: str) -> Branch:
        return branches.create_branch(context, name, source=at, hidden=hidden, committer=committer)

    if not context.options.run_actions or parse_reference(source).mode == "$":
        return create(source)
    commit_id, commit = resolve_commit(context, source)
    tags.refuse_expired(context, commit_id)  # the files of actions of an expired commit may be gone
    occasion = Occasion("pre-create-branch", commit.metarange, name, "", commit_id, source, committer=committer)
    # Create it at the commit of which the hooks were told: the source may have moved since.
    return _around(context, occasion, "post-create-branch", lambda: create(commit_id))


def undelete_branch(context: RepositoryContext, name: str, *, committer: str = "") -> Branch:
    """As `lakebed.repo.references.branches.undelete_branch`, with the ``post-`` actions of a creation.

    There are no ``pre-`` actions, because the branch existed before.
    """
    branch = branches.undelete_branch(context, name, committer=committer)
    if context.options.run_actions:
        commit = load_commit(context, branch.commit_id)
        run_after(
            context,
            Occasion("post-create-branch", commit.metarange, name, "", branch.commit_id, committer=committer),
        )
    return branch


def delete_branch(context: RepositoryContext, name: str, *, committer: str = "") -> Branch:
    """As `lakebed.repo.references.branches.delete_branch`, with actions. Also raises `Rejected`."""

    def delete(head: str | None) -> Branch:
        return branches.delete_branch(context, name, committer=committer, head=head)

    return around_branch_deletion(context, name, delete, committer=committer)


def around_branch_deletion(
    context: RepositoryContext, name: str, delete: Callable[[str | None], T], *, committer: str
) -> T:
    """Delete a branch, with actions. Raises the errors of `delete`, and `Rejected`.

    Args:
        delete: deletes the branch if its head is the given commit, and raises `Conflict` if it is not; None: any head.
    """
    if not context.options.run_actions:
        return delete(None)

    def look() -> Occasion:
        record, _ = branches.load_branch(context, name)
        state = load_commit(context, record.commit_id).metarange
        return Occasion("pre-delete-branch", state, name, "", record.commit_id, committer=committer)

    return _delete_as_asked(context, look, delete, after="post-delete-branch")


def _delete_as_asked(
    context: RepositoryContext, look: Callable[[], Occasion], delete: Callable[[str], T], *, after: ActionEvent
) -> T:
    """Delete exactly the commit's branch or tag of which the ``pre-`` hooks were told. If it moved, run them again.

    Args:
        look: returns the event for the branch or tag as it is now.
        delete: deletes it if it is at the given commit, else raises `Conflict`.
    """
    tries = 0
    while True:
        tries += 1
        occasion = look()
        run_before(context, occasion)
        try:
            is_deleted = delete(occasion.commit_id)
        except Conflict:
            if tries == context.options.publish_tries_max or look().commit_id == occasion.commit_id:
                raise
        else:
            run_after(context, replace(occasion, event=after))
            return is_deleted


def create_tag(
    context: RepositoryContext, name: str, *, commit_id: str, owner: str = "", lifetime_ms: int | None = None
) -> Tag:
    """As `lakebed.repo.references.tags.create_tag`, with actions. Also raises `Rejected`."""

    def create() -> Tag:
        return tags.create_tag(context, name, commit_id=commit_id, owner=owner, lifetime_ms=lifetime_ms)

    if not context.options.run_actions:
        return create()
    state = load_commit(context, commit_id).metarange
    tags.refuse_expired(context, commit_id)
    occasion = Occasion("pre-create-tag", state, tag=name, commit_id=commit_id, committer=owner)
    return _around(context, occasion, "post-create-tag", create)


def delete_tag(context: RepositoryContext, name: str, *, committer: str = "") -> Tag:
    """As `lakebed.repo.references.tags.delete_tag`, with actions. Also raises `Rejected`."""
    if not context.options.run_actions:
        return tags.delete_tag(context, name)

    def look() -> Occasion:
        tag = tags.load_tag(context, name)
        state = load_commit(context, tag.commit_id).metarange
        return Occasion("pre-delete-tag", state, tag=name, commit_id=tag.commit_id, committer=committer)

    def delete(commit_id: str) -> Tag:
        return tags.delete_tag(context, name, commit_id=commit_id)

    return _delete_as_asked(context, look, delete, after="post-delete-tag")
