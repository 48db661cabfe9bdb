"""A real server on a free loopback port, and a client that speaks HTTP with it."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import urllib3

from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server


@dataclass
class Answer:
    """A reply."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The sentence of an error."""
        assert set(self.json) - {"facts", "explanation"} == {"message"}, self.body
        return str(self.json.get("explanation") or self.json["message"])


@dataclass
class Client:
    """Requests with one access key."""

    endpoint: str
    headers: dict[str, str]
    pool: urllib3.PoolManager = field(default_factory=lambda: urllib3.PoolManager(retries=False))
    repository: str = "analytics"

    def ask(
        self, method: str, place: str, body: Any = None, headers: Mapping[str, str] | None = None, /, **query: Any
    ) -> Answer:
        """One request below ``/api/v1``; a place that begins with ``:`` is below the repository."""
        if place.startswith(":"):
            place = f"/repositories/{self.repository}{place[1:]}"
        return self.ask_root(method, "/api/v1" + place, body, headers, **query)

    def ask_root(
        self, method: str, place: str, body: Any = None, headers: Mapping[str, str] | None = None, /, **query: Any
    ) -> Answer:
        """One request."""
        url = self.endpoint + place + ("?" + urllib.parse.urlencode(query) if query else "")
        if isinstance(body, dict | list):
            body = json.dumps(body)
        reply = self.pool.request(
            method, url, body=body, headers={**self.headers, **(headers or {})}, redirect=False, timeout=60
        )
        return Answer(reply.status, reply.data, reply.headers)

    def put(self, path: str, body: bytes = b"content", *, branch: str = "main", **headers: str) -> Answer:
        """Upload an object."""
        answer = self.ask("POST", f":/branches/{branch}/objects", body, headers, path=path)
        assert answer.status == 201, answer.body
        return answer

    def get(self, path: str, *, ref: str = "main", **headers: str) -> Answer:
        """Download an object."""
        return self.ask("GET", f":/refs/{ref}/objects", None, headers, path=path)

    def commit(self, message: str = "a commit", *, branch: str = "main", **body: Any) -> Any:
        """Commit a branch; the commit."""
        answer = self.ask("POST", f":/branches/{branch}/commits", {"message": message, **body})
        assert answer.status == 201, answer.body
        return answer.json

    def listed(self, *, ref: str = "main", **query: Any) -> list[str]:
        """The paths of one page."""
        answer = self.ask("GET", f":/refs/{ref}/objects/ls", **query)
        assert answer.status == 200, answer.body
        return [row["path"] for row in answer.json["results"]]

    def with_key(self, access_key: str, secret: str) -> Client:
        """The same with another access key."""
        return Client(self.endpoint, urllib3.make_headers(basic_auth=f"{access_key}:{secret}"), self.pool)

    def new_key(self, role: str, **body: Any) -> Client:
        """The same with a new access key."""
        made = self.ask("POST", "/auth/keys", {"role": role, **body}).json
        return self.with_key(made["access_key_id"], made["secret_access_key"])


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start servers on one folder; they are stopped at the end."""
    running: list[Running] = []

    def start(*, access_log: Path | None = None, **options: Any) -> Running:
        running.append(
            start_server(
                tmp_path / "lake", access_log=access_log, options=ServerOptions(**{"durable": False, **options})
            )
        )
        return running[-1]

    yield start
    for item in running:
        item.stop()


def client_of(running: Running) -> Client:
    """A client with the first access key."""
    started = running.started
    assert started.access_key is not None
    assert started.secret is not None
    return Client(started.endpoint, urllib3.make_headers(basic_auth=f"{started.access_key}:{started.secret}"))


@pytest.fixture
def server(serve: Callable[..., Running]) -> Running:
    """A running server."""
    return serve()


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    """A client of it that may everything, and a repository ``analytics``."""
    made = client_of(server)
    created = made.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://analytics"})
    assert created.status == 201, created.body
    yield made
    made.pool.clear()


@pytest.fixture(scope="session")
def connect() -> Callable[[Running], Client]:
    """A client for a server that a test has started."""
    return client_of
