"""A history that lakeFS's server makes, and what a server of its interface says of it: to compare two servers by."""

from __future__ import annotations

import hashlib
import json
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

import urllib3

from worlds.waiting import wait_until

_READ_COUNT = 50
"""Of so many objects of a reference about are the bytes read."""


@dataclass
class LakefsClient:
    """Requests with one access key to a repository."""

    endpoint: str
    access_key: str
    secret: str = field(repr=False)
    repository: str = "analytics"
    pool: urllib3.PoolManager = field(default_factory=lambda: urllib3.PoolManager(retries=False), repr=False)

    def send(
        self, method: str, place: str, body: Any = None, headers: dict[str, str] | None = None, **query: str
    ) -> bytes:
        """The body of a reply; a place that begins with ``:`` is below the repository."""
        path = f"/repositories/{self.repository}{place[1:]}" if place.startswith(":") else place
        url = f"{self.endpoint}/api/v1{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        raw = json.dumps(body).encode() if body is not None and not isinstance(body, bytes) else body
        login = urllib3.make_headers(basic_auth=f"{self.access_key}:{self.secret}")
        reply = self.pool.request(
            method,
            url,
            body=raw,
            headers={**login, "content-type": kind, **(headers or {})},
            redirect=False,
            timeout=60,
        )
        assert reply.status < 300, f"{method} {place}: {reply.status} {reply.data[:500]!r}"
        return reply.data

    def ask(self, method: str, place: str, body: Any = None, **query: str) -> Any:
        """The JSON of a reply."""
        return json.loads(self.send(method, place, body, None, **query) or b"null")

    def rows(self, place: str, **query: str) -> list[Any]:
        """All rows of a list."""
        found: list[Any] = []
        after = ""
        while True:
            page = self.ask("GET", place, **{**query, "after": after, "amount": "1000"})
            found += page["results"]
            if not page["pagination"]["has_more"]:
                return found
            after = page["pagination"]["next_offset"]

    def put(self, path: str, content: bytes, *, branch: str = "main", **headers: str) -> None:
        """Upload an object."""
        self.send("POST", f":/branches/{branch}/objects", content, headers, path=path)

    def commit(self, message: str, *, branch: str = "main", **metadata: str) -> str:
        """Commit a branch; the id."""
        body = {"message": message, "metadata": metadata}
        return str(self.ask("POST", f":/branches/{branch}/commits", body)["id"])

    def wait(self, place: str, task_id: str) -> Any:
        """The status of a task when it is done."""
        status: dict[str, Any] = {}

        def is_done() -> bool:
            status.update(self.ask("GET", place, task_id=task_id))
            return bool(status["done"])

        wait_until(is_done)
        assert "error" not in status, status
        return status

    def dump(self) -> dict[str, str]:
        """The ids of a new dump."""
        return dict(self.wait(":/dump", self.ask("POST", ":/dump")["id"])["refs"])

    def restore(self, refs: dict[str, str], *, namespace: str) -> None:
        """Make the repository, bare, and restore a dump from its namespace."""
        body = {"name": self.repository, "storage_namespace": namespace, "default_branch": "main"}
        self.ask("POST", "/repositories", body, bare="true")
        self.wait(":/restore", self.ask("POST", ":/restore", refs)["id"])


def make_history(client: LakefsClient, *, namespace: str, object_count: int = 12) -> None:
    """A repository with commits that add, change, delete and merge, metadata, branches and tags."""
    body = {"name": client.repository, "storage_namespace": namespace, "default_branch": "main"}
    client.ask("POST", "/repositories", body)
    for number in range(object_count):
        client.put(f"data/day={number % 7}/part-{number:05d}.csv", b"flight,delay\n%d,%d\n" % (number, number * number))
    client.put("größe/ä b+%25.txt", "größe".encode(), **{"x-lakefs-meta-unit": "m", "content-type": "text/plain"})
    client.put("empty", b"")
    client.commit("many objects", ticket="42", author="größe")
    for number in range(4):
        client.put("data/changing.csv", b"version %d" % number)
        client.commit(f"change {number}", number=str(number))
    client.send("POST", ":/branches", {"name": "dev", "source": "main~2"})
    client.put("dev/1.csv", b"dev", branch="dev")
    client.commit("on dev", branch="dev")
    client.send("DELETE", ":/branches/main/objects", path="data/day=0/part-00000.csv")
    client.commit("a deletion")
    client.ask("POST", ":/refs/dev/merge/main", {"message": "dev is merged", "metadata": {"reviewed": "yes"}})
    client.send("POST", ":/branches", {"name": "old", "source": "main~3"})
    client.ask("POST", ":/tags", {"id": "v1.0", "ref": "main~1"})
    client.put("staged.csv", b"not committed")


def describe(client: LakefsClient, *, ids: bool = True) -> dict[str, Any]:
    """References, commits, and the objects of each reference with the MD5 of their bytes.

    Args:
        ids: whether commits are named by their ids; else by their messages, which are different from one another.
    """
    branches = {row["id"]: row["commit_id"] for row in client.rows(":/branches")}
    tags = {row["id"]: row["commit_id"] for row in client.rows(":/tags")}
    commits = {row["id"]: row for name in (*branches, *tags) for row in client.rows(f":/refs/{name}/commits")}
    names = {id: id if ids else row["message"] for id, row in commits.items()}
    fields = ("message", "committer", "creation_date", "metadata")
    return {
        "branches": {name: names[id] for name, id in branches.items()},
        "tags": {name: names[id] for name, id in tags.items()},
        "commits": {
            names[id]: {name: row[name] for name in fields} | {"parents": [names[parent] for parent in row["parents"]]}
            for id, row in commits.items()
        },
        "objects": {names[id]: _objects(client, id) for id in {*branches.values(), *tags.values()}},
    }


def _objects(client: LakefsClient, ref: str) -> dict[str, Any]:
    """What a reference has: facts of each object, and of some of them the MD5 of their bytes."""
    fields = ("size_bytes", "checksum", "content_type", "mtime")
    rows = client.rows(f":/refs/{ref}/objects/ls")
    objects = {
        row["path"]: {name: row[name] for name in fields} | {"metadata": row.get("metadata") or {}} for row in rows
    }
    for row in rows[:: 1 + len(rows) // _READ_COUNT]:
        content = client.send("GET", f":/refs/{ref}/objects", path=row["path"])
        objects[row["path"]]["md5"] = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return objects
