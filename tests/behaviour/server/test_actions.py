"""Actions: webhooks that files in a commit name, what they refuse, and what is kept of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from lakebed.http import slot_pool
from lakebed.repo.heads import actions
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.records import runs
from lakebed.repo.records.runs import ActionRun, new_run_id, store_run
from lakebed.repo.references import tags
from lakebed.repo.transport.transport import context_of
from worlds.listener import Reply, Request, listen
from worlds.waiting import wait_until


class Webhook:
    """A server of webhooks, which remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.status = 200
        self.statuses: list[int] = []
        """Of the next replies; then `status`."""
        self.hang = threading.Event()
        self.hang.set()
        self.port = 0

    def reply(self, request: Request) -> Reply:
        """Remember what it was asked."""
        self.requests.append((request.path, dict(request.headers), json.loads(request.body)))
        self.hang.wait(60)
        return Reply(self.statuses.pop(0) if self.statuses else self.status)

    def events(self) -> list[str]:
        """What it was told of, in order."""
        return [body["event_type"] for _, _, body in self.requests]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    """A server of webhooks."""
    made = Webhook()
    with listen(made.reply) as made.port:
        yield made
        made.hang.set()


@pytest.fixture
def server(serve: Callable[..., Any], webhook: Webhook) -> Any:
    """A server that may reach the webhooks."""
    options = RepositoryOptions(webhook_hosts=(f"127.0.0.1:{webhook.port}",))
    return serve(repository_options=options)


@pytest.fixture
def client(server: Any, connect: Callable[..., Any]) -> Any:
    """A client of it, and a repository."""
    made = connect(server)
    created = made.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://analytics"})
    assert created.status == 201
    return made


def action(webhook: Webhook, *events: str, kind: str = "webhook", hooks: int = 1, **properties: Any) -> bytes:
    """A file of an action."""
    lines = ["name: checks", "on:"]
    for event in events:
        name, _, branch = event.partition("@")
        lines += [f"  {name}:"] + ([f"    branches: ['{branch}']"] if branch else [])
    lines += ["hooks:"]
    for number in range(hooks):
        url = f"http://127.0.0.1:{webhook.port}/{number}"
        lines += [f"  - id: hook{number}", f"    type: {kind}", "    properties:", f"      url: {url}"]
        lines += [f"      {name}: {json.dumps(value)}" for name, value in properties.items()]
    return "\n".join(lines).encode()


def set_action(client: Any, body: bytes, *, name: str = "a.yaml", branch: str = "main") -> Any:
    """Commit a file of actions."""
    client.put(f"_lakefs_actions/{name}", body, branch=branch)
    return client.ask("POST", f":/branches/{branch}/commits", {"message": "actions"})


def listed(client: Any, **query: Any) -> list[dict[str, Any]]:
    """The runs, the newest first."""
    rows: list[dict[str, Any]] = client.ask("GET", ":/actions/runs", **query).json["results"]
    return rows


EVERY = [f"{when}-{what}" for what in ("commit", "merge", "create-branch", "delete-branch", "create-tag", "delete-tag")
         for when in ("pre", "post")]  # fmt: skip


def test_every_event_runs_its_hooks(client: Any, webhook: Webhook) -> None:
    """Each change asks before and tells after; the webhook hears of what, with query and headers; runs are kept."""
    properties = {"query_params": {"prefix": "p/"}, "headers": {"X-Token": "not-to-be-shown"}}
    set_action(client, action(webhook, *EVERY, **properties))
    assert webhook.events() == ["pre-commit", "post-commit"]
    path, headers, body = webhook.requests[1]
    assert path == "/0?prefix=p%2F"
    assert headers["X-Token"] == "not-to-be-shown"
    head = client.ask("GET", ":/branches/main").json["commit_id"]
    assert (body["repository_id"], body["branch_id"], body["commit_id"]) == ("analytics", "main", head)
    assert (body["action_name"], body["hook_id"], body["commit_message"]) == ("checks", "hook0", "actions")
    webhook.requests.clear()
    assert client.ask("POST", ":/branches", {"name": "dev", "source": "main"}).status == 201
    client.put("a", branch="dev")
    client.commit(branch="dev")
    assert client.ask("POST", ":/refs/dev/merge/main", {}).status == 200
    assert client.ask("POST", ":/tags", {"id": "v1", "ref": "main"}).status == 201
    assert client.ask("DELETE", ":/tags/v1").status == 204
    assert client.ask("DELETE", ":/branches/dev").status == 204
    whats = ("create-branch", "commit", "merge", "create-tag", "delete-tag", "delete-branch")
    assert webhook.events() == [f"{when}-{what}" for what in whats for when in ("pre", "post")]
    of_merge = next(body for _, _, body in webhook.requests if body["event_type"] == "post-merge")
    assert (of_merge["branch_id"], of_merge["merge_source"]) == ("main", "dev")
    rows = listed(client)
    assert [row["event_type"] for row in reversed(rows)][2:] == webhook.events()
    assert {row["status"] for row in rows} == {"completed"}
    assert len(listed(client, branch="dev")) == 6
    run = rows[-1]["run_id"]
    assert client.ask("GET", f":/actions/runs/{run}").json == rows[-1]
    (hook,) = client.ask("GET", f":/actions/runs/{run}/hooks").json["results"]
    assert (hook["hook_id"], hook["status"]) == ("hook0", "completed")
    output = client.ask("GET", f":/actions/runs/{run}/hooks/{hook['hook_run_id']}/output").body.decode()
    assert "answered 200" in output
    assert "not-to-be-shown" not in output
    page = client.ask("GET", ":/actions/runs", amount=3).json
    rest = client.ask("GET", ":/actions/runs", amount=100, after=page["pagination"]["next_offset"]).json
    assert [*page["results"], *rest["results"]] == rows


def state(client: Any) -> tuple[Any, ...]:
    """Heads, names and what is staged."""
    return tuple(client.ask("GET", place).json["results"] for place in (":/branches", ":/tags", ":/branches/main/diff"))


def test_a_hook_that_fails_refuses_the_change(client: Any, webhook: Webhook) -> None:
    """412 with the run, and nothing has changed; what follows on the same branch succeeds once the hook does."""
    set_action(client, action(webhook, *EVERY, hooks=2))
    client.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    client.put("b", branch="dev")
    client.commit(branch="dev")
    client.ask("POST", ":/tags", {"id": "v1", "ref": "main"})
    attempts: list[tuple[str, str, Any]] = [
        ("POST", ":/branches", {"name": "other", "source": "main"}),
        ("POST", ":/refs/dev/merge/main", {}),
        ("POST", ":/tags", {"id": "v2", "ref": "main"}),
        ("DELETE", ":/tags/v1", None),
        ("DELETE", ":/branches/dev", None),
        ("POST", ":/verbs/create_branch", {"name": "other", "source": "main"}),
        ("POST", ":/verbs/delete_branch", {"name": "dev"}),
        ("POST", ":/verbs/create_tag", {"name": "v2"}),
        ("POST", ":/verbs/delete_tag", {"name": "v1"}),
        ("POST", ":/verbs/pin", {"name": "v3"}),
        ("POST", ":/branches/dev/revert", {"ref": "dev", "parent_number": 0}),
    ]
    webhook.requests.clear()
    webhook.status = 500
    before = state(client)
    for method, place, body in attempts:
        answer = client.ask(method, place, body)
        assert answer.status == 412, (place, answer.body)
        run = listed(client)[0]
        assert run["run_id"] in answer.message
        assert run["status"] == "failed"
        (hook,) = client.ask("GET", f":/actions/runs/{run['run_id']}/hooks").json["results"]
        assert hook["status"] == "failed", "the second hook does not run when the first has failed"
    assert state(client) == before
    client.put("a")
    before = state(client)
    assert client.ask("POST", ":/branches/main/commits", {"message": "m"}).status == 412
    assert state(client) == before
    assert not any(event.startswith("post") for event in webhook.events())
    webhook.status = 204
    client.commit()


def test_branches_choose(client: Any, webhook: Webhook) -> None:
    """An action for some branches runs on those alone."""
    set_action(client, action(webhook, "pre-commit@feature-*"))
    assert webhook.events() == []
    client.ask("POST", ":/branches", {"name": "feature-1", "source": "main"})
    client.put("a", branch="feature-1")
    client.commit(branch="feature-1")
    assert webhook.events() == ["pre-commit"]
    assert [row["branch"] for row in listed(client)] == ["feature-1"]


def test_a_hook_that_hangs_ends_at_its_timeout(client: Any, webhook: Webhook) -> None:
    """The change is refused, and the run says that there was no answer."""
    webhook.hang.clear()
    answer = set_action(client, action(webhook, "pre-commit", timeout="200ms"))
    assert answer.status == 412
    assert "did not answer within 200 ms" in output_of(client)
    assert client.ask("GET", ":/refs/main/commits").json["pagination"]["results"] == 1


def test_hooks_that_hang_stop_no_other_repository(
    serve: Callable[..., Any], connect: Callable[..., Any], webhook: Webhook
) -> None:
    """More commits wait for hooks than the server has slots: commits and branches elsewhere are made meanwhile."""
    options = RepositoryOptions(webhook_hosts=(f"127.0.0.1:{webhook.port}",))
    client = connect(serve(repository_options=options, heavy_threads=1, quick_threads=1))
    other = replace(client, repository="others")
    for name in ("analytics", "others"):
        body = {"name": name, "storage_namespace": f"local://{name}"}
        assert client.ask("POST", "/repositories", body).status == 201
    assert set_action(client, action(webhook, "pre-commit", "pre-create-branch", "pre-create-tag")).status == 201
    webhook.requests.clear()
    webhook.hang.clear()
    waiting = [
        ("POST", ":/branches/main/commits", {"message": "m"}),
        ("POST", ":/branches", {"name": "dev", "source": "main"}),
        ("POST", ":/tags", {"id": "t", "ref": "main"}),
    ]
    client.put("a")
    with ThreadPoolExecutor(len(waiting)) as threads:
        answers = [threads.submit(client.ask, *request) for request in waiting]
        wait_until(lambda: len(webhook.requests) == len(waiting))
        other.put("a")
        other.commit()
        assert other.ask("POST", ":/branches", {"name": "dev", "source": "main"}).status == 201
        webhook.hang.set()
        assert [answer.result().status for answer in answers] == [201] * len(waiting)


def test_hooks_of_one_repository_wait_in_a_part_of_the_threads(
    client: Any, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more change that would wait for a hook than may is refused, and says why."""
    monkeypatch.setattr(slot_pool, "OUTSIDE_OF_OWNER_MAX", 1)
    assert set_action(client, action(webhook, "pre-create-branch")).status == 201
    webhook.hang.clear()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.ask, "POST", ":/branches", {"name": "first", "source": "main"})
        wait_until(lambda: webhook.requests)
        assert client.ask("POST", ":/branches", {"name": "second", "source": "main"}).status == 412
        assert "too many calls wait" in output_of(client)
        webhook.hang.set()
        assert first.result().status == 201
    assert client.ask("POST", ":/branches", {"name": "second", "source": "main"}).status == 201


def test_all_hooks_of_an_event_share_its_time(client: Any, webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that begins when the time of all is over is not called."""
    monkeypatch.setattr(actions, "HOOKS_MS_MAX", 300)
    webhook.hang.clear()
    body = action(webhook, "pre-commit", hooks=3).replace(b"    type: webhook", b"    type: webhook\n    if: always()")
    assert set_action(client, body).status == 412
    assert len(webhook.requests) == 1
    run = listed(client)[0]["run_id"]
    hooks = client.ask("GET", f":/actions/runs/{run}/hooks").json["results"]
    assert [hook["status"] for hook in hooks] == ["failed"] * 3


def test_a_branch_begins_with_what_the_hooks_were_asked_about(client: Any, webhook: Webhook) -> None:
    """A source that moves while a hook before decides is not what the branch gets."""
    assert set_action(client, action(webhook, "pre-create-branch")).status == 201
    webhook.hang.clear()
    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(client.ask, "POST", ":/branches", {"name": "dev", "source": "main"})
        wait_until(lambda: webhook.requests)
        client.put("behind")
        client.commit()
        webhook.hang.set()
        assert made.result().status == 201
    asked = webhook.requests[0][2]["commit_id"]
    assert client.ask("GET", ":/branches/dev").json["commit_id"] == asked
    assert client.listed(ref="dev") == ["_lakefs_actions/a.yaml"]


def asked_commits(webhook: Webhook) -> list[str]:
    """The commits that it was asked about, in order."""
    return [body["commit_id"] for _, _, body in webhook.requests]


def move_branch(client: Any, _: Any) -> None:
    """Let the branch ``dev`` have another head."""
    client.put("behind", branch="dev")
    assert client.commit(branch="dev")


def replace_tag(client: Any, server: Any) -> None:
    """Let another tag have the name ``dev``, of another commit."""
    client.put("behind")
    assert client.commit()
    context = context_of(server.site.repositories.repository("analytics"))
    tags.delete_tag(context, "dev")
    assert client.ask("POST", ":/tags", {"id": "dev", "ref": "main"}).status == 201


@pytest.mark.parametrize(("what", "move"), [("branch", move_branch), ("tag", replace_tag)])
@pytest.mark.parametrize("permits", [True, False])
def test_what_was_asked_about_is_deleted(
    client: Any, server: Any, webhook: Webhook, what: str, move: Callable[[Any, Any], None], permits: bool
) -> None:
    """Hooks are asked again about a branch that moved meanwhile, or another tag: what they refuse then stays."""
    assert set_action(client, action(webhook, f"pre-delete-{what}")).status == 201
    names = {"branch": {"name": "dev", "source": "main"}, "tag": {"id": "dev", "ref": "main"}}
    all_of = ":/branches" if what == "branch" else ":/tags"
    assert client.ask("POST", all_of, names[what]).status == 201
    before = client.ask("GET", f"{all_of}/dev").json["commit_id"]
    webhook.hang.clear()
    with ThreadPoolExecutor(1) as threads:
        deleted = threads.submit(client.ask, "DELETE", f"{all_of}/dev")
        wait_until(lambda: webhook.requests)
        move(client, server)
        after = client.ask("GET", f"{all_of}/dev").json["commit_id"]
        webhook.statuses = [200, 200 if permits else 403]
        webhook.hang.set()
        assert deleted.result().status == (204 if permits else 412)
    assert asked_commits(webhook) == [before, after]
    assert client.ask("GET", f"{all_of}/dev").status == (404 if permits else 200)


def output_of(client: Any) -> str:
    """The output of the newest run's first hook."""
    run = listed(client)[0]["run_id"]
    hook = client.ask("GET", f":/actions/runs/{run}/hooks").json["results"][0]["hook_run_id"]
    return str(client.ask("GET", f":/actions/runs/{run}/hooks/{hook}/output").body.decode())


@pytest.mark.parametrize("kind", ["lua", "airflow"])
def test_other_hooks_are_refused_in_the_run(client: Any, webhook: Webhook, kind: str) -> None:
    """A hook of Lua or airflow before a change refuses it, with a sentence; one after is recorded as failed."""
    assert set_action(client, action(webhook, "pre-commit", kind=kind)).status == 412
    assert kind in output_of(client)
    assert set_action(client, action(webhook, "post-commit", kind=kind)).status == 201
    assert listed(client)[0]["status"] == "failed"
    assert kind in output_of(client)


def test_a_file_that_cannot_be_used_refuses_every_change(client: Any, webhook: Webhook) -> None:
    """Until a commit mends it: that commit is judged by what it would hold."""
    assert set_action(client, b"on: [", name="b.yaml").status == 412
    assert "b.yaml" in output_of(client)
    assert set_action(client, action(webhook, "prepare-commit"), name="b.yaml").status == 412
    assert "prepare-commit" in output_of(client)
    assert set_action(client, action(webhook, "post-commit"), name="b.yaml").status == 201
    assert set_action(client, b"on: [", name="without-an-ending").status == 412
    assert "without-an-ending" in output_of(client)


def test_hooks_reach_no_private_address(
    serve: Callable[..., Any], connect: Callable[..., Any], webhook: Webhook
) -> None:
    """Unless the operator allows the host: the rules of webhooks."""
    client = connect(serve())
    client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://analytics"})
    assert set_action(client, action(webhook, "pre-commit")).status == 412
    assert "no public address" in output_of(client)
    assert webhook.requests == []


def test_a_process_that_dies_in_a_hook_leaves_a_failed_run(client: Any, webhook: Webhook) -> None:
    """While a hook runs, its run is there, without an end and not completed."""
    webhook.hang.clear()
    client.put("_lakefs_actions/a.yaml", action(webhook, "pre-commit"))
    answers: list[Any] = []
    commit = ("POST", ":/branches/main/commits", {"message": "m"})
    asking = threading.Thread(target=lambda: answers.append(client.ask(*commit)))
    asking.start()
    while not webhook.requests:
        asking.join(0.01)
    (run,) = listed(client)
    assert run["status"] == "failed"
    assert "end_time" not in run
    webhook.hang.set()
    asking.join()
    assert answers[0].status == 201
    (run,) = listed(client)
    assert run["status"] == "completed"


def test_runs_are_bounded(client: Any, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go when there are too many, and those that are too old."""
    context = context_of(server.site.repositories.create("bounded", namespace="local://bounded"))
    for number in range(6):
        store_run(context, new_run_id(context), ActionRun("pre-commit", "main", str(number), context.now_ms()))
    monkeypatch.setattr(runs, "RUNS_MAX", 4)
    before = [id for id, _ in runs.list_runs(context)]
    assert runs.trim_runs(context) == 2
    assert [id for id, _ in runs.list_runs(context)] == before[:4]
    assert runs.trim_runs(context) == 0
    monkeypatch.setattr(runs, "RUN_DAYS", -1)
    assert runs.trim_runs(context) == 4
    assert client.ask("GET", ":/actions/runs/x").status == 404
    assert client.ask("GET", ":/actions/runs/00000000000-0000000000000000/hooks/0000/output").status == 404
