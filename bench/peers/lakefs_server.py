"""Servers for the measurements and long tests against lakeFS: its own, and `lakebed serve`, each a process of its own.

Owns: how both are started, with an access key that the caller knows. ``tools/lakefs.sh`` builds what is run here.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import urllib3

ROOT: Final = Path(__file__).parents[2]
BUILT: Final = Path(os.environ.get("LAKEFS_BUILT") or ROOT / "build" / "lakefs")
"""Where ``make lakefs`` has built lakeFS."""

_START_S: Final = 60.0
_END_S: Final = 30.0


@dataclass(frozen=True)
class Place:
    """A server that answers.

    Attributes:
        domain: in front of which a bucket may stand, in requests of S3.
    """

    name: str
    endpoint: str
    access_key: str
    secret: str
    domain: str
    pid: int
    log: Path

    @property
    def port(self) -> int:
        """On this machine."""
        port = urlsplit(self.endpoint).port
        assert port is not None
        return port


def is_built() -> bool:
    """Whether lakeFS is there."""
    return (BUILT / ".ready").exists()


def peak_mb(place: Place) -> float:
    """The most resident memory that a server had so far, in megabytes (2**20). Linux only."""
    status = Path(f"/proc/{place.pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM:")).split()[1]) / 1024


@contextmanager
def lakefs_server(
    folder: Path, *, is_synced: bool = True, settings: Mapping[str, str] | None = None, with_key: bool = True
) -> Iterator[Place]:
    """LakeFS on a folder: objects and records in local storage, nothing reported to anyone.

    Args:
        is_synced: whether its records wait for the disk; the bytes of its objects never do.
        settings: more variables, as ``LAKEFS_...``.
        with_key: False: the first user is still to be set up.
    """
    folder.mkdir(parents=True)
    port = free_port()
    access_key, secret = f"AKIAJ{secrets.token_hex(7).upper()}Q", secrets.token_urlsafe(30)
    installation = {
        "INSTALLATION_USER_NAME": "admin",
        "INSTALLATION_ACCESS_KEY_ID": access_key,
        "INSTALLATION_SECRET_ACCESS_KEY": secret,
    }
    chosen = {
        "DATABASE_TYPE": "local",
        "DATABASE_LOCAL_PATH": str(folder / "records"),
        "DATABASE_LOCAL_SYNC_WRITES": str(is_synced).lower(),
        "BLOCKSTORE_TYPE": "local",
        "BLOCKSTORE_LOCAL_PATH": str(folder / "objects"),
        "BLOCKSTORE_LOCAL_IMPORT_ENABLED": "true",
        "BLOCKSTORE_LOCAL_ALLOWED_EXTERNAL_PREFIXES": str(folder / "import"),
        "COMMITTED_LOCAL_CACHE_DIR": str(folder / "cache"),
        "AUTH_ENCRYPT_SECRET_KEY": secrets.token_hex(16),
        "LISTEN_ADDRESS": f"127.0.0.1:{port}",
        "GATEWAYS_S3_DOMAIN_NAME": f"localhost:{port}",
        "LOGGING_LEVEL": "ERROR",
        "LOGGING_AUDIT_LOG_LEVEL": "TRACE",  # is not written, like our access log
        "STATS_ENABLED": "false",
        "EMAIL_SUBSCRIPTION_ENABLED": "false",
        "SECURITY_CHECK_LATEST_VERSION": "false",
        "SECURITY_AUDIT_CHECK_INTERVAL": "0",
        **(installation if with_key else {}),
    }
    (folder / "import").mkdir()
    variables = {f"LAKEFS_{name}": value for name, value in chosen.items()} | dict(settings or {})
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(BUILT / "lakefs"), "run"], env={**os.environ, **variables}, stdout=output, stderr=output, cwd=folder
        )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _wait_until_it_answers(f"{endpoint}/api/v1/healthcheck", process, log)
        yield Place("lakefs", endpoint, access_key, secret, f"localhost:{port}", process.pid, log)
    finally:
        _end(process)


@contextmanager
def lakebed_server(folder: Path, *, is_durable: bool = True, imports: bool = False) -> Iterator[Place]:
    """`lakebed serve` on a folder, with S3.

    Args:
        is_durable: False does not wait for the disk.
        imports: whether objects of the folder ``import`` next to it may be imported.
    """
    folder.mkdir(parents=True)
    (folder / "import").mkdir()
    port = free_port()
    options = {
        "durable": is_durable,
        "s3_key_file": str(folder / "s3.key"),
        "s3_domains": ["localhost"],
        "import_from": [str(folder / "import")] if imports else [],
    }
    code = (
        "import json, sys\n"
        "from lakebed.repo import RepositoryOptions\n"
        "from lakebed.server.options import ServerOptions\n"
        "from lakebed.server.serve import run_server\n"
        "def report(started):\n"
        "    print(json.dumps([started.endpoint, started.access_key, started.secret]), flush=True)\n"
        "folder, port, options = json.loads(sys.argv[1])\n"
        "hooks = RepositoryOptions(run_actions=True, webhook_hosts=('localhost', '127.0.0.1', '::1'))\n"
        "options = ServerOptions(**options, repository_options=hooks)\n"
        "run_server(folder, port=port, access_log=None, options=options, started=report)\n"
    )
    arguments = json.dumps([str(folder / "lake"), port, options])
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code, arguments], stdout=subprocess.PIPE, stderr=output, text=True
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, log.read_text()
        endpoint, access_key, secret = json.loads(line)
        yield Place("lakebed", endpoint, access_key, secret, f"localhost:{port}", process.pid, log)
    finally:
        _end(process)
        process.stdout.close()


def free_port() -> int:
    """A port that was free a moment ago: lakeFS does not say which it chose."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < end_s:
        try:
            if urllib3.request("GET", url, retries=False, timeout=5).status < 300:
                return
        except urllib3.exceptions.HTTPError:
            time.sleep(0.1)
    raise RuntimeError(f"The server of lakeFS does not answer at {url}:\n{log.read_text()[-2000:]}")


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
