"""A PostgreSQL cluster of our own, in a temporary folder, on a free loopback port.

Owns: its start and end, as a user that is not root. Does not know: tables.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg

from worlds.ports import free_port
from worlds.waiting import wait_until

START_TRIES_MAX = 600


class NotInstalled(Exception):
    """PostgreSQL cannot run here."""


@dataclass(frozen=True)
class PostgreSQL:
    """A running cluster of our own."""

    port: int
    password: str = field(repr=False)
    process: subprocess.Popen[bytes] = field(repr=False)

    def url(self, database: str, *, password: str | None = None) -> str:
        """Of a database on it."""
        return f"postgresql://lakebed:{password or self.password}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    def make_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"lakebed_{uuid.uuid4().hex}"
        self.run(f"CREATE DATABASE {name}")
        return self.url(name)

    def answers(self) -> bool:
        """Whether it lets clients in."""
        with suppress(psycopg.Error):
            return bool(self.run("SELECT 1"))
        return False

    def crash(self, url: str) -> None:
        """Kill one of its processes, which serves a database: it ends all others, and starts again from its log."""
        name = urlsplit(url).path.removeprefix("/")
        pids = self.run(f"SELECT pid FROM pg_stat_activity WHERE datname = '{name}' LIMIT 1")
        assert pids
        os.kill(pids[0][0], signal.SIGKILL)
        wait_until(self.answers)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """All its processes stand still meanwhile."""
        pids = [self.process.pid, *_children(self.process.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def run(self, statement: str, *, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement by itself; its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


def _children(pid: int) -> list[int]:
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


def postgresql_program(name: str) -> str | None:
    """A program of PostgreSQL: on the PATH, or where Debian puts it."""
    result = shutil.which(name)
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return result or (str(versions[-1]) if versions else None)


def _as_other_user(folder: Path) -> list[str]:
    """What to put before a command: PostgreSQL refuses to run as root. The folder goes to whom it runs as."""
    if os.geteuid() != 0:
        return []
    for user in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(user)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
            return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups", "--"]
    raise NotInstalled("PostgreSQL does not run as root, and there is no user postgres or nobody")


@contextmanager
def running_postgresql(*, fsync: bool = False) -> Iterator[PostgreSQL]:
    """A cluster until the end of the ``with``.

    Args:
        fsync: commits wait for the disk.

    Raises `NotInstalled`.
    """
    initdb, postgres = postgresql_program("initdb"), postgresql_program("postgres")
    if initdb is None or postgres is None:
        raise NotInstalled("PostgreSQL is not installed: on Debian and Ubuntu, apt-get install postgresql")
    # Not pytest's folder, which other users may not enter.
    with tempfile.TemporaryDirectory(prefix="lakebed-postgresql-", ignore_cleanup_errors=True) as name:
        folder, port, password = Path(name), free_port(), f"it's:a/secret@{uuid.uuid4().hex}"
        prefix = _as_other_user(folder)
        log = folder / "log"
        (folder / "password").write_text(password)
        (folder / "password").chmod(0o644)
        made = subprocess.run(
            [*prefix, str(initdb), "-D", str(folder / "data"), "-U", "lakebed", "--auth=scram-sha-256",
             f"--pwfile={folder / 'password'}", "--encoding=UTF8", "--locale=C", "--no-sync"],
            capture_output=True, text=True, cwd=folder, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        settings = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "",
                    "fsync": "on" if fsync else "off", "max_connections": 200, "shared_buffers": "32MB"}  # fmt: skip
        command = [*prefix, str(postgres), "-D", str(folder / "data")]
        command += [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
        server = PostgreSQL(port, quote(password, safe=""), process)
        try:
            _wait_until_it_answers(server, log)
            yield server
        finally:
            process.send_signal(signal.SIGQUIT)  # at once: its contents are not needed
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)


def _wait_until_it_answers(server: PostgreSQL, log: Path) -> None:
    for _ in range(START_TRIES_MAX):
        try:
            server.run("SELECT 1")
            return
        except psycopg.OperationalError:
            with suppress(subprocess.TimeoutExpired):
                server.process.wait(0.1)
                break
    raise AssertionError(f"PostgreSQL did not start:\n{log.read_text()[-2000:]}")
