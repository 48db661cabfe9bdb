"""Files of actions: what is read of them, and what is refused."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import yaml

from lakebed.errors import InvalidRequest
from lakebed.repo.model.actions import ACTION_BYTES_MAX, parse_action
from worlds.errors import raises

GOOD: dict[str, Any] = {
    "name": "checks",
    "on": {"pre-merge": {"branches": ["main", "feature-*"]}, "post-commit": None},
    "hooks": [{"id": "one", "type": "webhook", "properties": {"url": "https://ci.example/x?t=1", "timeout": "1m0s"}}],
}


def write(document: Any) -> bytes:
    """A file, with ``on`` as people write it: without quotes."""
    return yaml.safe_dump(document).replace("'on':", "on:").encode()


def test_events_branches_and_hooks_are_read() -> None:
    """An event on a branch concerns an action whose patterns have it; without patterns every branch does."""
    action = parse_action(write(GOOD), file="x.yaml")
    assert action.name == "checks"
    assert action.concerns("pre-merge", "main")
    assert action.concerns("pre-merge", "feature-1")
    assert not action.concerns("pre-merge", "dev")
    assert action.concerns("post-commit", "dev")
    assert not action.concerns("pre-commit", "main")
    (hook,) = action.hooks
    assert (hook.id, hook.url, hook.timeout_ms, hook.refusal) == ("one", "https://ci.example/x?t=1", 60_000, "")


def test_query_parameters_and_headers_are_sent() -> None:
    """A parameter may have several values, and those of the URL stay."""
    properties = {
        "url": "http://ci.example:8080/x?t=1",
        "query_params": {"disallow": ["a_", "b&"], "prefix": "public/"},
        "headers": {"X-Token": "secret"},
    }
    hooks = [{"id": "one", "type": "webhook", "properties": properties}]
    (hook,) = parse_action(write({**GOOD, "hooks": hooks}), file="x").hooks
    assert hook.url == "http://ci.example:8080/x?t=1&disallow=a_&disallow=b%26&prefix=public%2F"
    assert hook.headers == (("X-Token", "secret"),)
    assert hook.timeout_ms == 60_000


@pytest.mark.parametrize(
    ("hook", "word"),
    [
        ({"type": "lua", "properties": {"script": "print(1)"}}, "lua"),
        ({"type": "airflow", "properties": {"url": "http://airflow.example"}}, "airflow"),
        ({"type": "webhook", "properties": {"url": "http://x.example", "headers": {"a": "{{ ENV.T }}"}}}, "Variables"),
        ({"type": "webhook", "properties": {"url": "http://x.example/{{ ENV.TOKEN }}"}}, "Variables"),
    ],
)  # fmt: skip
def test_a_hook_that_cannot_run_is_one_that_fails(hook: dict[str, Any], word: str) -> None:
    """Lua, airflow and variables are read, so that the run says why they do not run."""
    (parsed,) = parse_action(write({**GOOD, "hooks": [{"id": "one", **hook}]}), file="x").hooks
    assert word in parsed.refusal


def with_hook(**change: Any) -> dict[str, Any]:
    """The good file with another hook."""
    return {**GOOD, "hooks": [{**GOOD["hooks"][0], **change}]}


def with_properties(**change: Any) -> dict[str, Any]:
    """The good file with other properties."""
    return with_hook(properties={**GOOD["hooks"][0]["properties"], **change})


@pytest.mark.parametrize(
    "document",
    [
        [],
        "text",
        {},
        {**GOOD, "on": {}},
        {**GOOD, "on": {"prepare-commit": None}},
        {**GOOD, "on": {"pre-revert": None}},
        {**GOOD, "on": {"pre-commit": ["main"]}},
        {**GOOD, "on": {"pre-commit": {"branches": "main"}}},
        {**GOOD, "on": {"pre-commit": {"tags": ["v1"]}}},
        {**GOOD, "on": {"pre-create-tag": {"branches": ["main"]}}},
        {**GOOD, "hooks": []},
        {**GOOD, "hooks": GOOD["hooks"] * 2},
        {**GOOD, "else": 1},
        with_hook(id="a b"),
        with_hook(type="shell"),
        with_hook(**{"if": "success() && true"}),
        with_hook(properties=None),
        with_properties(url="ftp://x.example"),
        with_properties(url="http://"),
        with_properties(url=None),
        with_properties(url="http://x.example/\nHost: y"),
        with_properties(timeout="2m"),
        with_properties(timeout="0s"),
        with_properties(timeout="soon"),
        with_properties(timeout=5),
        with_properties(headers={"Host": "y"}),
        with_properties(headers={"a": "b\nc"}),
        with_properties(headers={"a": "\u2603"}),
        with_properties(query_params={"a": 1}),
        with_properties(method="GET"),
    ],
)
def test_what_is_not_done_is_refused(document: Any) -> None:
    """An unknown event, type, condition or property, or one that cannot be: the whole file."""
    with raises(InvalidRequest, "invalid_action") as caught:
        parse_action(write(document), file="bad.yaml")
    assert "bad.yaml" in caught.value.message


@pytest.mark.parametrize(
    "raw",
    [
        b"a: [",
        b"\xff\xfe\x00",
        b"a: !!python/object:os.system {}",
        b"x" * (ACTION_BYTES_MAX + 1),
        b"a: &a [x]\n" + b"b: [*a,*a]\n" * 60,
        b'a: !!int ""',
        b"a: !!bool x",
        b"a: !!timestamp x",
        pytest.param(b"a: " + b"1:" * 200 + b"1.5", id="a number of 200 parts"),
    ],
)
def test_what_is_not_a_file_of_actions_is_refused(raw: bytes) -> None:
    """Bytes that are no YAML, too many of them, aliases of aliases, or values that their tags do not mean."""
    with pytest.raises(InvalidRequest):
        parse_action(raw, file="bad.yaml")


HOSTILE = """
on: {{pre-commit: null}}
hooks:
- description: [{lists}]
  id: a
  type: webhook
  properties: {{url: "http://example.com", timeout: {timeout}}}
{more}
"""


@pytest.mark.parametrize(
    ("timeout", "more"),
    [("*a7", ""), ("0x" + "f" * 20_000, ""), ("1s", "0x" + "f" * 20_000 + ": x"), ("1s", "? [*a7, *a7]\n: x")],
    ids=["lists", "number", "name", "name of lists"],
)
def test_a_small_file_takes_little_memory(timeout: str, more: str) -> None:
    """Lists that name one another are never written out, for an error either, nor a number of any length."""
    lists = ["&a0 [l,l,l,l,l,l,l,l]", *(f"&a{i} [{','.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 8))]
    raw = HOSTILE.format(lists=", ".join(lists), timeout=timeout, more=more).encode()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            parse_action(raw, file="bad.yaml")
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 20 << 20
