"""The server and lakeFS's own, in turn: ``python bench/lakefs.py [--scale 1] [--only stat,upload] [--samples 7]``.

Both servers run on local storage, as processes of this machine, and are asked in turn by 16 connections. At scale 1 the
base has 100,000 objects, imported by both. Rows: stat; list (a page of 1,000 that begins anywhere); upload_4k (ours
waits for the disk; lakeFS as it is set by default: its records do, its objects never), upload_4k_unsynced (neither
waits); commit_10k (of 10,000 staged objects); first_page_deleted_100k (of a branch on which all objects but the last
are deleted, and not committed); s3_get_4k, s3_put_4k, s3_get_100mb (through the gateways; peer ``rest``: the same over
our REST interface); peak_memory, of the servers. Times are of the whole: with 16 clients a request takes 16 times as
long.

Needs lakeFS as ``make lakefs`` builds it; without, nothing is measured.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "peers"))

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from lakefs_server import BUILT, Place, is_built, lakebed_server, lakefs_server, peak_mb

import harness
from harness import Result, alternate
from load import ask, drain, run_load

WORKLOADS: Final = ("stat", "listing", "upload", "commit", "deleted", "s3", "memory")
CLIENT_COUNT: Final = 16
BODY: Final = bytes(range(256)) * 16
"""4 KiB."""
LARGE_BYTES: Final = 100_000_000
BATCH: Final = 1_000
REPOSITORY: Final = "measured"
REFERENCE: Final = f"/repositories/{REPOSITORY}/refs/main/objects"
SIGNED_COUNT: Final = 2_000
"""Requests that are signed before they are measured; they are sent in turn."""


class Side:
    """One server: how requests to it are written."""

    def __init__(self, place: Place) -> None:
        self.place = place
        key = base64.b64encode(f"{place.access_key}:{place.secret}".encode()).decode()
        self._head = f"Host: 127.0.0.1:{place.port}\r\nAuthorization: Basic {key}\r\n"

    def request(self, method: str, target: str, body: bytes = b"", *, kind: str = "application/octet-stream") -> bytes:
        """A request of the REST interface."""
        length = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n" if method != "GET" else ""
        return f"{method} /api/v1{target} HTTP/1.1\r\n{self._head}{length}\r\n".encode() + body

    def ask(self, method: str, target: str, body: Any = None) -> Any:
        """Ask for JSON."""
        raw = b"" if body is None else json.dumps(body).encode()
        reply = ask(self.place.port, self.request(method, target, raw, kind="application/json"))
        assert reply.status < 300, (self.place.name, method, target, reply)
        return json.loads(reply.body) if reply.body.startswith((b"{", b"[")) else None

    def signed(self, method: str, path: str, body: bytes = b"") -> bytes:
        """A request of S3, signed in its headers."""
        host = self.place.domain
        asked = AWSRequest(method, f"http://{host}/{quote(path)}", data=body, headers={"Host": host})
        S3SigV4Auth(Credentials(self.place.access_key, self.place.secret), "s3", "us-east-1").add_auth(asked)
        if method != "GET":
            asked.headers["Content-Length"] = str(len(body))
        lines = "".join(f"{name}: {value}\r\n" for name, value in asked.headers.items())
        return f"{method} /{quote(path)} HTTP/1.1\r\n{lines}\r\n".encode() + body

    def load(self, make: Callable[[], bytes | None], *, expected: int = 200, seconds: float | None = None) -> float:
        """Microseconds a request."""
        load = run_load(self.place.port, make, client_count=CLIENT_COUNT, expected=expected, seconds=seconds)
        return load.us_a_request


class Bench:
    """Both servers, and the base that both have."""

    def __init__(self, folder: Path, servers: ExitStack, *, scale: float, sample_count: int) -> None:
        self.folder, self.sample_count = folder, sample_count
        self.count = max(2_000, int(100_000 * scale))
        self.seconds = max(0.5, min(2.0, 2.0 * scale))
        self._servers = servers
        self._rng = random.Random(3)
        self._made = 0
        self.paths = [f"lake/part={row // BATCH:04d}/{row % BATCH:03d}.parquet" for row in range(self.count)]
        self.sides = self._start("synced", is_synced=True)
        for side in self.sides.values():
            self._import_base(side)

    def _start(self, name: str, *, is_synced: bool) -> dict[str, Side]:
        servers = {
            "lakebed": lakebed_server(self.folder / f"lakebed-{name}", is_durable=is_synced, imports=True),
            "lakefs": lakefs_server(self.folder / f"lakefs-{name}", is_synced=is_synced),
        }
        sides = {peer: Side(self._servers.enter_context(server)) for peer, server in servers.items()}
        for peer, side in sides.items():
            namespace = f"local://{peer}-{REPOSITORY}"
            side.ask("POST", "/repositories", {"name": REPOSITORY, "storage_namespace": namespace})
        return sides

    def _import_base(self, side: Side) -> None:
        source = side.place.log.parent / "import"
        for path in self.paths:
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_bytes(b"x")
        place = f"/repositories/{REPOSITORY}/branches/main/import"
        paths = [{"type": "common_prefix", "path": f"local://{source}/", "destination": ""}]
        started = side.ask("POST", place, {"paths": paths, "commit": {"message": "base"}})
        while not (status := side.ask("GET", f"{place}?id={started['id']}"))["completed"]:
            assert not status.get("error"), status
            time.sleep(0.2)
        assert status["ingested_objects"] == self.count, status

    def number(self) -> int:
        """A number that was not used."""
        self._made += 1
        return self._made

    def alternate(
        self, workload: str, measure: Callable[[Side], float], *, sides: dict[str, Side] | None = None, **facts: Any
    ) -> Result:
        """Measure both sides in turn."""
        measures = {name: (lambda side=side: measure(side)) for name, side in (sides or self.sides).items()}
        return alternate(workload, measures, sample_count=self.sample_count, **facts)

    # ---- workloads

    def stat(self) -> list[Result]:
        """Microseconds to get the metadata of an object."""

        def measure(side: Side) -> float:
            def make() -> bytes:
                return side.request("GET", f"{REFERENCE}/stat?path={quote(self._rng.choice(self.paths))}")

            return side.load(make, seconds=self.seconds)

        return [self.alternate("stat", measure, unit="us", target=">= 1x")]

    def listing(self) -> list[Result]:
        """Microseconds for a page of 1,000 objects that begins anywhere."""

        def measure(side: Side) -> float:
            def make() -> bytes:
                after = quote(self._rng.choice(self.paths[: -BATCH - 1]))
                return side.request("GET", f"{REFERENCE}/ls?amount={BATCH}&after={after}")

            return side.load(make, seconds=self.seconds)

        return [self.alternate("list", measure, unit="us", rows=BATCH, target=">= 1x")]

    def upload(self) -> list[Result]:
        """Microseconds for an object of 4 KiB, with and without waiting for the disk."""

        def measure(side: Side) -> float:
            run = self.number()

            def make() -> bytes:
                target = f"/repositories/{REPOSITORY}/branches/main/objects?path=up/{run}/{self.number()}"
                return side.request("POST", target, BODY)

            return side.load(make, expected=201, seconds=self.seconds)

        unsynced = self._start("unsynced", is_synced=False)
        return [
            self.alternate("upload_4k", measure, unit="us", durable=True, target=">= 0.6x"),
            self.alternate("upload_4k_unsynced", measure, sides=unsynced, unit="us", target=">= 1x"),
        ]

    def commit(self) -> list[Result]:
        """Milliseconds to commit 10,000 staged objects."""
        count = min(10_000, self.count)

        def measure(side: Side) -> float:
            branch = f"commit-{self.number()}"
            place = f"/repositories/{REPOSITORY}/branches"
            side.ask("POST", place, {"name": branch, "source": "main"})
            names = [f"new/{self.number():08d}.parquet" for _ in range(count)]
            self._stage(side, branch, names)
            start = time.perf_counter()
            side.ask("POST", f"{place}/{branch}/commits", {"message": "measured"})
            return (time.perf_counter() - start) * 1e3

        return [self.alternate("commit_10k", measure, unit="ms", rows=count, durable=True)]

    def _stage(self, side: Side, branch: str, names: list[str]) -> None:
        """Stage objects without bytes: lakeFS one a request, which it has; ours in one."""
        if side.place.name == "lakebed":
            source = side.place.log.parent / "import"
            facts = {"checksum": "0" * 32, "size_bytes": 9, "modified_ms": 0}
            rows = [{"path": name, "address": f"file://{source}/{name}", **facts} for name in names]
            side.ask("POST", f"/repositories/{REPOSITORY}/verbs/stage_many?branch={branch}", rows)
            return
        namespace = f"local://{side.place.log.parent}/objects/lakefs-{REPOSITORY}"
        requests = iter(
            side.request(
                "PUT",
                f"/repositories/{REPOSITORY}/branches/{branch}/objects?path={name}",
                json.dumps(
                    {"physical_address": f"{namespace}/data/{name}", "checksum": "0" * 32, "size_bytes": 9}
                ).encode(),
                kind="application/json",
            )
            for name in names
        )
        side.load(lambda: next(requests, None), expected=201)

    def deleted(self) -> list[Result]:
        """Milliseconds for the first page of a branch on which all objects but the last are deleted."""
        place = f"/repositories/{REPOSITORY}/branches"
        for side in self.sides.values():
            side.ask("POST", place, {"name": "deleted", "source": "main"})
            gone = self.paths[:-1]
            for at in range(0, len(gone), BATCH):
                side.ask("POST", f"{place}/deleted/objects/delete", {"paths": gone[at : at + BATCH]})

        def measure(side: Side) -> float:
            start = time.perf_counter()
            page = side.ask("GET", f"/repositories/{REPOSITORY}/refs/deleted/objects/ls?amount=100&prefix=lake/")
            took_ms = (time.perf_counter() - start) * 1e3
            assert [row["path"] for row in page["results"]] == self.paths[-1:]
            return took_ms

        return [self.alternate("first_page_deleted_100k", measure, unit="ms", rows=self.count)]

    def s3(self) -> list[Result]:
        """Through the gateways: microseconds for an object of 4 KiB, milliseconds for one of 100 MB."""
        uploads = f"/repositories/{REPOSITORY}/branches/main/objects?path="
        small = [f"s3/{number}" for number in range(SIGNED_COUNT)]
        for side in self.sides.values():
            requests = iter([side.request("POST", uploads + name, BODY) for name in small])
            side.load(lambda requests=requests: next(requests, None), expected=201)
            large = random.Random(1).randbytes(1_000_000) * (LARGE_BYTES // 1_000_000)
            assert ask(side.place.port, side.request("POST", f"{uploads}s3/large", large)).status == 201
            assert ask(side.place.port, side.signed("GET", f"{REPOSITORY}/main/s3/large")).body == large

        def through_s3(method: str, name_of: Callable[[int], str], body: bytes) -> Callable[[Side], float]:
            def measure(side: Side) -> float:
                names = [name_of(number) for number in range(SIGNED_COUNT)]
                signed = [side.signed(method, f"{REPOSITORY}/main/{name}", body) for name in names]
                turn = _cycle(signed)
                return side.load(lambda: next(turn), seconds=self.seconds)

            return measure

        ours = self.sides["lakebed"]

        def get(side: Side) -> float:
            return side.load(
                lambda: side.request("GET", f"{REFERENCE}?path={self._rng.choice(small)}"), seconds=self.seconds
            )

        def put(side: Side) -> float:
            return side.load(
                lambda: side.request("POST", f"{uploads}s3/put/{self.number()}", BODY),
                expected=201,
                seconds=self.seconds,
            )

        def large_ms(request: Callable[[Side], bytes]) -> Callable[[Side], float]:
            def measure(side: Side) -> float:
                asked = request(side)
                start = time.perf_counter()
                assert drain(side.place.port, asked) == (200, LARGE_BYTES)
                return (time.perf_counter() - start) * 1e3

            return measure

        rows: Iterable[tuple[str, Callable[[Side], float], Callable[[Side], float], dict[str, Any]]] = (
            ("s3_get_4k", through_s3("GET", lambda number: small[number], b""), get, {"target": "rest >= 0.8x"}),
            (
                "s3_put_4k",
                through_s3("PUT", lambda number: f"s3/made/{self.number()}", BODY),
                put,
                {"target": "rest >= 0.8x", "durable": True},
            ),
            (
                "s3_get_100mb",
                large_ms(lambda side: side.signed("GET", f"{REPOSITORY}/main/s3/large")),
                large_ms(lambda side: side.request("GET", f"{REFERENCE}?path=s3/large")),
                {"unit": "ms", "target": "<= 333 ms (300 MB/s)"},
            ),
        )
        return [
            alternate(
                name,
                {
                    "lakebed": lambda gateway=gateway: gateway(ours),
                    "rest": lambda rest=rest: rest(ours),
                    "lakefs": lambda gateway=gateway: gateway(self.sides["lakefs"]),
                },
                sample_count=self.sample_count,
                **{"unit": "us", **facts},
            )
            for name, gateway, rest, facts in rows
        ]

    def memory(self) -> list[Result]:
        """The most memory that each server had, whatever was measured before."""
        taken = {name: [peak_mb(side.place)] for name, side in self.sides.items()}
        return [harness.result_of("peak_memory", taken, unit="MB")]


def _cycle(requests: list[bytes]) -> Iterator[bytes]:
    while True:
        yield from requests


def main() -> None:
    """Start both servers, measure, write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--samples", type=int, default=7)
    arguments = parser.parse_args()
    if not is_built():
        print(f"lakeFS is not built in {BUILT}: run make lakefs. Nothing was measured.", file=sys.stderr)
        return
    chosen = [name for name in WORKLOADS if name in arguments.only.split(",")]
    folder = Path(tempfile.mkdtemp(prefix="lakebed-bench-lakefs-"))
    try:
        with ExitStack() as servers:
            bench = Bench(folder, servers, scale=arguments.scale, sample_count=arguments.samples)
            results = [result for name in chosen for result in getattr(bench, name)()]
            version = bench.sides["lakefs"].ask("GET", "/config/version")["version"]
    finally:
        shutil.rmtree(folder)
    versions = {**harness.versions_of("lakebed", "starlette", "uvicorn"), "lakefs": version}
    harness.write_results("lakefs", results, scale=arguments.scale, versions=versions)


if __name__ == "__main__":
    main()
