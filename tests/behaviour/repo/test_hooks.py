"""Hooks: callables in the process, and webhooks over HTTP, which may refuse and never leak."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from lakebed.errors import InvalidRequest, Rejected
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.hooks import HookCall, HookEvent, Webhook, set_webhooks, webhooks
from lakebed.repo.references.branches import create_branch, load_branch
from lakebed.repo.verbs.versions import Restore
from worlds.errors import raises
from worlds.listener import Reply, Request, listen
from worlds.repo.memory_repository import MemoryRepository, open_context, put
from worlds.repo.operations import cherry_pick, commit, commit_text, merge, rebase, revert


class Receiver:
    """A server that keeps what it receives, and sends the replies it was given."""

    def __init__(self) -> None:
        self.status = 200
        self.answer = b""
        self.headers: dict[str, str] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.silent = threading.Event()
        self.silent.set()
        self.port = 0

    def reply(self, request: Request) -> Reply:
        """Keep what it receives."""
        self.calls.append((request.path, json.loads(request.body)))
        self.silent.wait(30)
        return Reply(self.status, self.answer, self.headers)

    def url(self, path: str = "/hook") -> str:
        """Where it listens, with secrets in every place that can hold one."""
        return f"http://user:secret-1@127.0.0.1:{self.port}{path}?token=secret-2"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A server of webhooks."""
    opened = Receiver()
    with listen(opened.reply) as opened.port:
        yield opened
        opened.silent.set()


ALLOWED = RepositoryOptions(committer="ada", webhook_hosts=("127.0.0.0/8",))


@pytest.fixture
def home() -> Iterator[RepositoryContext]:
    """A repository with one staged path, whose webhooks may reach this machine."""
    with open_context(MemoryRepository(options=ALLOWED)) as opened:
        put(opened, "main", "a", "1")
        yield opened


def register(home: RepositoryContext, *hooks: Webhook) -> None:
    """Set the webhooks of the repository."""
    set_webhooks(home.key_value, keys=home.keys, hooks=hooks)


def refusal(home: RepositoryContext) -> str:
    """The sentence of a commit that a webhook refuses."""
    before = load_branch(home, "main")[0].commit_id
    with raises(Rejected, "hook_rejected") as caught:
        commit(home, "main", message="m")
    assert load_branch(home, "main")[0].commit_id == before
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(caught.value.facts)
    return str(caught.value)


def test_a_webhook_is_told_of_a_commit(home: RepositoryContext, receiver: Receiver) -> None:
    """Before and after, as JSON, with the commit's id; other processes see the setting too."""
    register(home, Webhook("audit", receiver.url(), ("pre-commit", "post-commit")))
    new = commit(home, "main", message="m", metadata={"k": "v"})
    (path, before), (_, after) = receiver.calls
    assert path == "/hook?token=secret-2"
    assert [before["event"], after["event"]] == ["pre-commit", "post-commit"]
    assert before["commit_id"] == after["commit_id"] == new.id
    assert (before["repository"], before["branch"], before["metadata"]) == ("analytics", "main", {"k": "v"})
    assert [hook.name for hook in webhooks(home.key_value, keys=home.keys)] == ["audit"]


@pytest.mark.parametrize("status", [300, 302, 303, 307, 308, 400, 404, 500])
def test_an_answer_that_is_not_2xx_refuses(home: RepositoryContext, receiver: Receiver, status: int) -> None:
    """The sentence says which status was answered and nothing of the reply; a redirect is not followed."""
    receiver.status, receiver.answer = status, b"what an inner service says" + b"!" * 1000
    receiver.headers = {"Location": receiver.url("/elsewhere"), "X-Inner": "what a header says"}
    register(home, Webhook("gate", receiver.url(), ("pre-commit",)))
    sentence = refusal(home)
    assert f"answered {status}" in sentence
    assert "says" not in sentence
    assert [path for path, _ in receiver.calls] == ["/hook?token=secret-2"]


def test_every_verb_that_makes_a_commit_asks_and_tells(home: RepositoryContext) -> None:
    """Merge, revert, cherry-pick, rebase and restore: hooks may refuse each commit, and receive it once it is there."""
    seen: list[tuple[str, str]] = []
    for event in get_args(HookEvent):
        home.hooks.register(event, lambda call: seen.append((call.event, call.commit_id)), name=event)
    first = commit(home, "main", message="one")
    create_branch(home, "dev", source="main")
    second = commit_text(home, "dev", "b", "2", message="two")
    commit_text(home, "main", "c", "3", message="three")
    create_branch(home, "side", source="main~1")
    commit_text(home, "side", "d", "4", message="four")
    seen.clear()
    made = [
        ("commit", cherry_pick(home, "main", ref=second.id)),
        ("commit", revert(home, "main", ref="main")),
        ("merge", merge(home, "dev", into="main")),
        ("commit", rebase(home, "side", onto="dev")),
    ]
    restored = Restore(version=first.id).run(home)
    expected = [(f"{when}-{what}", new.id) for what, new in made for when in ("pre", "post")]
    expected += [("pre-commit", restored.id), ("post-commit", restored.id)]
    assert seen == expected

    def refuse(call: HookCall) -> None:
        raise ValueError("not on a Friday")

    home.hooks.register("pre-commit", refuse)
    with pytest.raises(Rejected, match="Friday"):
        Restore(version=second.id).run(home)
    assert load_branch(home, "main")[0].commit_id == restored.id


def test_a_webhook_that_does_not_answer_refuses(home: RepositoryContext, receiver: Receiver) -> None:
    """In time, and also when no server listens at all."""
    receiver.silent.clear()
    register(home, Webhook("slow", receiver.url(), ("pre-commit",), timeout_ms=50))
    assert "did not answer within 50 ms" in refusal(home)
    receiver.silent.set()
    register(home, Webhook("nobody", "http://secret-1@127.0.0.1:9/hook?secret-2", ("pre-commit",), timeout_ms=500))
    assert "did not answer" in refusal(home)


def test_a_failing_webhook_after_a_commit_is_reported(home: RepositoryContext, receiver: Receiver) -> None:
    """The commit stands; the failure says which hook it was and holds no secret."""
    receiver.status = 500
    register(home, Webhook("audit", receiver.url(), ("post-commit",)))
    new = commit(home, "main", message="m")
    [failure] = home.hooks.failures
    assert (failure.hook, failure.call.commit_id) == ("audit", new.id)
    assert "answered 500" in failure.reason
    assert "secret" not in failure.reason


def test_all_hooks_before_have_to_agree(home: RepositoryContext, receiver: Receiver) -> None:
    """Callables are asked first, in order; after a refusal no further hook is asked."""
    asked: list[str] = []

    def first(call: HookCall) -> None:
        asked.append("first")

    def second(call: HookCall) -> None:
        asked.append("second")
        raise ValueError("no")

    for hook in (first, second, lambda call: asked.append("third")):
        home.hooks.register("pre-commit", hook)
    register(home, Webhook("gate", receiver.url(), ("pre-commit",)))
    assert "'second'" in refusal(home)
    assert asked == ["first", "second"]
    assert receiver.calls == []


@pytest.mark.parametrize(
    "hook",
    [
        Webhook("", "http://host/", ("pre-commit",)),
        Webhook("x", "ftp://host/", ("pre-commit",)),
        Webhook("x", "file:///etc/passwd", ("pre-commit",)),
        Webhook("x", "http://", ("pre-commit",)),
        Webhook("x", "http://host:port/", ("pre-commit",)),
        Webhook("x", "http://host/", ()),
        Webhook("x", "http://host/", ("pre-lunch",)),  # type: ignore[arg-type]
        Webhook("x", "http://host/", ("pre-commit",), timeout_ms=0),
        Webhook("x", "http://host/", ("pre-commit",), timeout_ms=3_600_000),
    ],
)
def test_what_is_no_webhook_is_refused(home: RepositoryContext, hook: Webhook) -> None:
    """When it is set, not when it is needed."""
    with raises(InvalidRequest, "invalid_hook"):
        register(home, hook)
    assert webhooks(home.key_value, keys=home.keys) == ()


def test_there_are_not_too_many_webhooks(home: RepositoryContext) -> None:
    """Nor two of one name; and no event that there is not can be registered for."""
    webhook = Webhook("x", "http://host/", ("pre-commit",))
    for hooks in ([webhook] * 2, [Webhook(f"{n}", "http://host/", ("pre-commit",)) for n in range(33)]):
        with pytest.raises(InvalidRequest):
            register(home, *hooks)
    with pytest.raises(InvalidRequest):
        home.hooks.register("pre-lunch", print)  # type: ignore[arg-type]
