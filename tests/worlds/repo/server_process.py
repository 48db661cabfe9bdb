"""A server in a process of its own, which may be killed, stopped and started again, and a client of it.

Owns: `ServerProcess`, one ``lakebed serve`` at a port that stays the same over all its lives, and `HttpClient`, which
speaks HTTP with one of several servers. Does not know: what is written, and when a server is killed
(`worlds.repo.workload`).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

from lakebed.clock import SystemClock
from worlds.ports import free_port
from worlds.promise import PromiseBroken
from worlds.repo.client import Expected, Refused, RepositoryClient, Unclear, checksum_of
from worlds.repo.workload import Step, Workload
from worlds.waiting import pause

API = "/api/v1"
IMPORT = "/branches/imports/import"
_CLOCK = SystemClock()


def memory_of(pid: int, field: str = "VmHWM") -> int:
    """Bytes that a process has in memory, or had at most (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise ValueError(f"process {pid} has no {field}")


class ServerProcess:
    """``lakebed serve`` of one storage at one port.

    Args:
        storage: its folder or URL.
        folder: for its logs.
        arguments: more of the command line.
        keys: access key and secret; None: those of a first start.
    """

    def __init__(
        self,
        storage: str,
        folder: Path,
        *,
        arguments: Sequence[str] = (),
        keys: tuple[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.keys = keys
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.errors = folder / f"errors.{self.port}"
        self.access_log = folder / f"access.{self.port}"
        self._environment = {**os.environ, **(environment or {})}
        command = [sys.executable, "-W", "error", "-m", "lakebed.cli", "serve", storage, "--json"]
        self._command = [*command, "--port", str(self.port), "--access-log", str(self.access_log), *arguments]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self.process is not None
        return self.process.pid

    @property
    def headers(self) -> dict[str, str]:
        """Of the first access key."""
        assert self.keys is not None
        return urllib3.make_headers(basic_auth=":".join(self.keys))

    def start(self, *arguments: str) -> ServerProcess:
        """Start, and wait until it answers. Raises `PromiseBroken` when it does not."""
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*self._command, *arguments], stdout=subprocess.PIPE, stderr=errors, env=self._environment
            )
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline()]
        while lines[-1] not in (b"", b"}\n"):
            lines.append(self.process.stdout.readline())
        if not lines[-1]:
            raise PromiseBroken(f"the server ended with {self.process.wait()}: {self.errors.read_text()[-3000:]}")
        document = json.loads(b"".join(lines))
        if document["secret_access_key"] is not None:
            self.keys = (document["access_key_id"], document["secret_access_key"])
        return self

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it; its exit code."""
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.send_signal(number)
        code = self.process.wait(90)
        self.process.stdout.close()
        return code

    def __enter__(self) -> ServerProcess:
        try:
            return self if self.process is not None else self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        if self.process is None or self.process.stdout is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.stop(signal.SIGKILL)
        self.process.stdout.close()

    def told(self) -> str:
        """Everything that it said on standard error and in its access log."""
        return self.errors.read_text() + (self.access_log.read_text() if self.access_log.exists() else "")

    def tracebacks(self) -> list[str]:
        """Lines that speak of bugs."""
        return [line[:4000] for line in self.told().splitlines() if "Traceback" in line or '"status":500' in line]


class HttpClient(RepositoryClient):
    """A repository over HTTP; each call goes to any of several servers.

    Args:
        endpoints: of the servers.
        headers: of an access key.
        repository: its name.
        settle_s: how long something may still land after its server went away: an unclear call waits so long.
    """

    puts_many: bool = False

    def __init__(
        self,
        endpoints: Sequence[str],
        headers: Mapping[str, str],
        *,
        repository: str = "storm",
        seed: int = 0,
        settle_s: float = 0.0,
    ) -> None:
        self._endpoints = list(endpoints)
        self._headers = dict(headers)
        self._here = f"{API}/repositories/{repository}"
        self._pool = urllib3.PoolManager(retries=False, maxsize=16, timeout=urllib3.Timeout(connect=5, read=60))
        self._rng = random.Random(seed)
        self._settle_s = settle_s

    def ask(
        self,
        method: str,
        place: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        at: str | None = None,
        **query: Any,
    ) -> urllib3.BaseHTTPResponse:
        """One request: its reply of 2xx. Raises `Refused`, `Unclear`, `PromiseBroken`."""
        root = place if place.startswith(API) else self._here + place
        url = (at or self._rng.choice(self._endpoints)) + root + ("?" + urlencode(query) if query else "")
        if isinstance(body, dict):
            body = json.dumps(body)
        try:
            reply = self._pool.request(
                method, url, body=body, headers={**self._headers, **(headers or {})}, redirect=False
            )
        except urllib3.exceptions.HTTPError as error:
            pause(self._settle_s)
            raise Unclear(str(error)) from error
        if reply.status < 300:
            return reply
        message = reply.data[:2_000]
        if reply.status == 503:
            pause(self._settle_s)
            raise Unclear(f"{reply.status} {message!r}")
        if reply.status >= 500 or "message" not in json.loads(reply.data):
            raise PromiseBroken(f"{method} {url}: {reply.status} {message!r}")
        raise Refused(reply.headers["X-Lakebed-Error"], f"{reply.status} {message!r}")

    def put(self, branch: str, path: str, body: bytes, *, only_if_absent: bool = False) -> None:
        """Write an object; the reply must be about what was sent."""
        headers = {"If-None-Match": "*"} if only_if_absent else {}
        got = self.ask("POST", f"/branches/{branch}/objects", body, headers, path=path).json()
        if (got["path"], got["size_bytes"], got["checksum"]) != (path, len(body), checksum_of(body)):
            raise PromiseBroken(f"the reply to {path}, {len(body)} bytes: {got}")

    def put_many(self, branch: str, bodies: Mapping[str, bytes]) -> None:
        """Not offered: the interface has no such call."""
        raise NotImplementedError

    def delete(self, branch: str, paths: list[str]) -> None:
        if len(paths) == 1:
            self.ask("DELETE", f"/branches/{branch}/objects", path=paths[0])
            return
        if errors := self.ask("POST", f"/branches/{branch}/objects/delete", {"paths": paths}).json()["errors"]:
            raise PromiseBroken(f"deleting {paths}: {errors}")

    def clear(self, branch: str, prefix: str) -> None:
        """List, then delete, as clients do."""
        if paths := sorted(self.show(branch, prefix)):
            self.delete(branch, paths)

    def commit(self, branch: str, message: str) -> str:
        return str(self.ask("POST", f"/branches/{branch}/commits", {"message": message}).json()["id"])

    def merge(self, source: str, into: str) -> None:
        self.ask("POST", f"/refs/{source}/merge/{into}", {})

    def revert(self, branch: str, ref: str) -> None:
        self.ask("POST", f"/branches/{branch}/revert", {"ref": ref, "parent_number": 0})

    def reset(self, branch: str, *, prefix: str | None = None, hard: bool = False) -> None:
        if hard:
            self.ask("PUT", f"/branches/{branch}/hard_reset", ref=self.head(branch), force="true")
        else:
            kind = {"type": "reset"} if prefix is None else {"type": "common_prefix", "path": prefix}
            self.ask("PUT", f"/branches/{branch}", kind)

    def create_branch(self, name: str, source: str) -> None:
        self.ask("POST", "/branches", {"name": name, "source": source})

    def delete_branch(self, name: str) -> None:
        self.ask("DELETE", f"/branches/{name}")

    def create_tag(self, name: str, ref: str) -> None:
        self.ask("POST", "/tags", {"id": name, "ref": ref})

    def delete_tag(self, name: str) -> None:
        self.ask("DELETE", f"/tags/{name}")

    def names(self, kind: str, prefix: str) -> dict[str, str]:
        place = "/tags" if kind == "tag" else "/branches"
        rows = self.ask("GET", place, prefix=prefix, amount=1000).json()["results"]
        return {row["id"]: row["commit_id"] for row in rows}

    def head(self, branch: str) -> str:
        return str(self.ask("GET", f"/branches/{branch}").json()["commit_id"])

    def show(self, ref: str, prefix: str, *, bodies: bool = False) -> dict[str, str]:
        result: dict[str, str] = {}
        after, more = "", True
        while more:
            page = self.ask("GET", f"/refs/{quote(ref)}/objects/ls", prefix=prefix, after=after, amount=1000).json()
            result |= {row["path"]: row["checksum"] for row in page["results"]}
            after, more = page["pagination"]["next_offset"], page["pagination"]["has_more"]
        if bodies:
            for path in result:
                result[path] = checksum_of(self.ask("GET", f"/refs/{quote(ref)}/objects", path=path).data)
        return result


class ImportWorkload(Workload):
    """Imports a folder again and again; an import whose reply was lost is asked for once more.

    Args:
        source: the folder, below which the server may read; it has files.
    """

    references = ("imports",)

    def __init__(self, client: HttpClient, said: Path, name: str, seed: int, *, source: Path) -> None:
        super().__init__(client, said, name, seed)
        self._client = client
        self._source = source
        self._sums = {file.name: checksum_of(file.read_bytes()) for file in source.iterdir()}

    def prepare(self) -> None:
        """Make the branch."""
        try:
            self._patiently(lambda: self.client.create_branch("imports", "main"))
        except Refused as error:
            if error.args[0] != "branch_exists":
                raise

    def observe(self) -> Expected:
        """Paths alone: what is imported has its store's checksum."""
        return {"imports": dict.fromkeys(self.client.show("imports", self.prefix), "")}

    def next_step(self) -> Step:
        """Import to a place of its own."""
        into = f"{self.prefix}{self.number}/"
        after = {**self.state["imports"], **dict.fromkeys((into + name for name in self._sums), "")}
        return Step("import", {"imports": after}, lambda: self._patiently(lambda: self._import(into)), set())

    def _import(self, into: str) -> None:
        if self.client.show("imports", into):
            return
        place = {"type": "common_prefix", "path": f"local://{self._source}/", "destination": into}
        try:
            started = self._client.ask("POST", IMPORT, {"paths": [place], "commit": {"message": "import"}}).json()["id"]
        except Refused as error:
            if error.args[0] == "import_busy":
                raise Unclear("another import is running") from error
            raise
        while True:
            reply = self._patiently(lambda: self._client.ask("GET", IMPORT, id=started).json())
            if reply["completed"]:
                return
            if "error" in reply:
                raise Unclear(f"the import failed: {reply['error']}")
            pause(0.02)
