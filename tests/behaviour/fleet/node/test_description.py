"""Requests inside, at and beyond the edges of what a node's interface describes: no failure of the server.

The description is put to the test by Hypothesis, which makes the requests from it, and by schemathesis in the long run.
"""

from __future__ import annotations

import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
import urllib3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakebed.fleet.model import MAIN, Policy
from lakebed.fleet.node.service import ROUTES, NodeSite, description
from lakebed.http.application import build
from lakebed.http.listening import bind, url_of
from lakebed.http.options import HttpOptions
from lakebed.http.process import RunningServer
from lakebed.http.serving import Serving
from worlds.fleet_node import TENANT, Fleet
from worlds.required import miss

CLIENTS = Path(__file__).parents[4] / ".venv-clients" / "bin" / "st"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
KEY_BYTES_MAX = 1 << 16
EXAMPLES = 250
LONG = "-A-LONG-KEY-"
"""In the place of a key that is longer than a URL may be."""


@contextmanager
def served(folder: Path | None = None) -> Iterator[tuple[Fleet, str]]:
    """A node with rows, a branch and a pin, on a free port; its URL."""
    fleet = Fleet(policy=Policy(retain_rows=20))
    node = fleet.node("a")
    fleet.ingest(node, rows=60)
    node.checkpoint(TENANT)
    for kind in ("branch", "pin"):
        fleet.change(node, kind, kind, parent=MAIN, lsn=50)
    options = HttpOptions()
    listener = bind("127.0.0.1", 0, backlog=options.backlog)
    url = url_of("127.0.0.1", listener)
    serving = Serving.open(
        "node",
        options=options,
        environment=fleet.environment,
        authority=url.partition("://")[2],
        reads_inline=True,
        access_log=None if folder is None else str(folder / "access.log"),
    )
    site = NodeSite(serving, node, token=None)
    with RunningServer(build(site, ROUTES), site, listener):
        yield fleet, url


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[Fleet, str]]:
    """One for all requests."""
    with served() as result:
        yield result


NAMES = st.sampled_from([TENANT, MAIN, "branch", "pin", "other", "@main", "main@1", "..", "a/b", "x" * 200, "\0", "ü"])
NUMBERS = st.one_of(
    st.sampled_from([0, 1, 50, 60, -1, 61, (1 << 53) - 1, 1 << 53, 1 << 63, 1 << 64, 1 << 200]), st.integers()
)
KEYS = st.one_of(
    st.binary(max_size=40).map(lambda key: urlsafe_b64encode(key).decode()),
    st.sampled_from(["", "YQ==", "YQ", "a", "=", "ä", "%00", LONG]),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), st.text(max_size=8), NAMES),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=10,
)
DOCUMENT = description()


def values_of(schema: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """What a schema describes, and now and then something else."""
    if "$ref" in schema:
        return values_of(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], depth)
    if "enum" in schema:
        right: st.SearchStrategy[Any] = st.sampled_from(schema["enum"])
    elif "anyOf" in schema:
        right = st.one_of(*(values_of(item, depth) for item in schema["anyOf"]))
    elif schema.get("type") == "object" and "properties" in schema and depth < 4:
        fields = {name: values_of(item, depth + 1) for name, item in schema["properties"].items()}
        required = {name: fields[name] for name in schema.get("required", ())}
        right = st.fixed_dictionaries(required, optional={k: v for k, v in fields.items() if k not in required})
    elif schema.get("type") == "array":
        right = st.lists(values_of(schema.get("items", {}), depth + 1), max_size=3)
    else:
        right = {
            "string": st.one_of(NAMES, st.sampled_from(["create", "branch", "pin", "restore", "delete", "detach"])),
            "integer": NUMBERS,
            "boolean": st.booleans(),
            "null": st.none(),
        }.get(str(schema.get("type")), JSON)
    return st.one_of(right, right, right, JSON)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, bytes]:
    """A method, a path with its query, and a body."""
    path, methods = draw(st.sampled_from(sorted(DOCUMENT["paths"].items())))
    method, operation = draw(
        st.sampled_from(sorted(element for element in methods.items() if element[0] != "parameters"))
    )
    for part in ("tenant", "timeline"):
        known = TENANT if part == "tenant" else draw(st.sampled_from([MAIN, "branch", "pin"]))
        if operation["operationId"] == "putLocation":
            known = "other"  # the others' requests need theirs
        names = NAMES.filter(lambda name: name != TENANT) if known == "other" else NAMES
        name = draw(st.one_of(st.just(known), st.just(known), names))
        path = path.replace("{" + part + "}", quote(name, safe=""))
    query: dict[str, str] = {}
    for item in operation.get("parameters", ()):
        if item.get("in") == "query" and draw(st.integers(0, 3)):
            number = item["schema"].get("type") == "integer"
            query[item["name"]] = str(draw(st.one_of(NUMBERS, NAMES) if number else KEYS))
    body = b""
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        made = draw(values_of(content["application/json"]["schema"]))
        try:
            body = msgspec.json.encode(made)
        except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError):
            body = b'{"lsn":' + b"9" * 400 + b"}"
    elif content:
        keys = st.lists(st.one_of(st.binary(max_size=9), st.just(b"k" * (KEY_BYTES_MAX + 1)), st.text(max_size=3)))
        asked = {"keys": draw(keys)} if path.endswith("values") else {"start": draw(st.binary()), "end": draw(KEYS)}
        asked["lsn"] = draw(st.one_of(st.none(), st.integers(-5, 1 << 63)))
        body = draw(st.one_of(st.just(msgspec.msgpack.encode(asked)), st.binary(max_size=60)))
    if body and draw(st.integers(0, 9)) == 0:
        body = body[: len(body) // 2]
    return method.upper(), path + ("?" + urlencode(query) if query else ""), body


def check(service: tuple[Fleet, str], request: tuple[str, str, bytes]) -> None:
    """Send a request: every refusal has a kind, and the rows are what they were."""
    url = service[1]
    method, path, body = request
    path = path.replace(LONG, "A" * 90_000)
    reply = urllib3.request(method, url + path, body=body or None, retries=False, timeout=60)
    assert reply.status < 500, (request, reply.data)
    if reply.status >= 400 and len(path) < 60_000:  # the parser refuses longer lines
        assert reply.headers["x-lakebed-error"] not in ("", "internal_error"), (request, reply.data)


FUZZING = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], database=None
)


@settings(FUZZING, max_examples=EXAMPLES, derandomize=True)
@given(request=requests())
def test_described_requests_never_fail_the_server(service: tuple[Fleet, str], request: tuple[str, str, bytes]) -> None:
    """Right and wrong names, numbers, keys and bodies: an answer, or a refusal with a kind."""
    check(service, request)


@pytest.mark.long
@settings(FUZZING, max_examples=20 * EXAMPLES)
@given(request=requests())
def test_many_more_requests(service: tuple[Fleet, str], request: tuple[str, str, bytes]) -> None:
    """The same, other requests each time."""
    check(service, request)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", "/timelines/main/values", {"keys": [b"k" * (KEY_BYTES_MAX + 1)]}, 400, "oversized_key"),
        ("POST", "/timelines/main/rows", {"start": b"k" * (KEY_BYTES_MAX + 1)}, 400, "oversized_key"),
        ("POST", "/timelines/main/rows", {"start": b"b", "end": b"a", "lsn": 1 << 60}, 400, "invalid_lsn"),
        ("POST", "/timelines/main/rows", [b"a"], 400, "invalid_body"),
        ("POST", "/timelines/main/values", {"keys": [b"k"] * 100_001}, 400, "too_many_keys"),
        ("POST", "/timelines/main/values", {"keys": [b""]}, 400, "empty_key"),
        ("POST", "/timelines/main/values", {"keys": [b"k"], "lsn": -1}, 400, "invalid_lsn"),
        ("POST", "/timelines/main/values", {"keys": [b"k" * 1_000] * 70_000}, 413, "too_large"),
        ("POST", "/changes", b'{"kind":"create","name":"n","id":"' + b"x" * (70 << 20) + b'"}', 413, "too_large"),
    ],
    ids=["key", "bound", "range", "body", "keys", "empty key", "lsn", "list", "change"],
)
def test_oversized_requests(
    service: tuple[Fleet, str], method: str, path: str, body: Any, status: int, kind: str
) -> None:
    """What is too large is refused with a clear status, and is not read to its end."""
    content = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
    url = f"{service[1]}/node/v1/tenants/{TENANT}{path}"
    reply = urllib3.request(method, url, body=content or None, retries=False, timeout=60)
    assert (reply.status, reply.headers.get("x-lakebed-error")) == (status, kind), reply.data


@pytest.mark.long
def test_nothing_that_is_described_fails(tmp_path: Path) -> None:
    """Schemathesis: no failure of the server, every reply as described."""
    if not CLIENTS.exists():
        miss("schemathesis is not installed: make test-long installs it")
    with served(tmp_path) as (_, url):
        command = [str(CLIENTS), "run", f"{url}/openapi.json", "--no-color", "--warnings", "off"]
        command += ["--checks", CHECKS, "--phases", "coverage,fuzzing", "--max-examples", "10", "--seed", "1"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert '"status":5' not in (tmp_path / "access.log").read_text()
