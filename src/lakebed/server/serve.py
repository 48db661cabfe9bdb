"""The entry point: check the settings, bind, and serve until asked to stop.

Owns: `run_server` and `start_server`. They bind before anything is opened, so that the lease on the embedded database
contains the endpoint to which other processes refer callers. One process owns an embedded database, so several workers
need records that they can share: ``metadata="postgresql://..."``. The delay before a worker that dies repeatedly is
restarted grows. The parent serves no request.

The S3 key of a server is a file with 32 random bytes, hexadecimal (DO NOT CHANGE), from which the secrets of access
keys are derived. Only the owner of the file may be able to read it.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import signal
import socket
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.http.listening import bind, check_host, url_of
from lakebed.http.signing import SIGNING_KEY_BYTES
from lakebed.ids import new_uuid
from lakebed.log import warn
from lakebed.objects.path import parse_url
from lakebed.repo.outside.import_policy import parse_allowed_folders
from lakebed.repo.outside.outbound import parse_allowed
from lakebed.runtime import Environment
from lakebed.server.lifecycle import NAME, Running, first_key, open_records, serve_one, startup_report
from lakebed.server.options import ServerOptions
from lakebed.server.settings import ServerSettings, Started

_SHARED: Final = ("postgresql://", "postgres://")
_DEFAULT: Final = ServerOptions()
_PERSON: Final = b"lakebed urls"
"""Distinguishes the key of signed URLs from other uses of the S3 key."""


def run_server(
    storage_url: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    access_log: str | os.PathLike[str] | None = "-",
    options: ServerOptions = _DEFAULT,
    started: Callable[[Started], None] | None = None,
) -> int:
    """Serve the repositories of a storage over HTTP until SIGTERM or SIGINT; return the exit code, 0.

    Args:
        storage_url: a folder, or a URL such as ``s3://bucket/lake``.
        host: where to listen; an address that other machines can reach needs `ServerOptions.allow_remote`.
        port: 0: a free one, which `started` receives.
        access_log: ``"-"`` is standard error, else a file that is appended to; None: no log.
        options: what is served, to whom, and the limits of it.
        started: receives where the server answers and, at the very first start, the first access key; None: printed.

    Raises:
        InvalidRequest: kind ``remote_host``, ``workers_need_postgresql``, ``invalid_address``,
            ``invalid_webhook_host``, ``invalid_s3_key``, ``no_s3_key``; or the storage cannot be opened as it is named.
        Unavailable: kind ``port_in_use``.
        Conflict: kind ``owned``, with ``endpoint=`` where the owner serves.
        Fenced: another process has taken over the records meanwhile.
    """
    _check_workers(options)
    check_host(host, allow_remote=options.allow_remote, tls=options.tls)
    environment = Environment()
    report = started or _print
    with bind(host, port, backlog=options.backlog) as listener:
        settings = _settings(storage_url, url_of(host, listener, tls=options.tls), access_log, options, environment)
        if options.workers == 1:
            return serve_one(settings, listener, started=report)
        with open_records(settings) as repositories:
            answers = startup_report(settings, first_key(repositories, settings))

        def start(number: int, answering: Event) -> BaseProcess:
            worker_settings = replace(settings, resume_imports=number == 0)
            process = CONTEXT.Process(
                target=_work, args=(worker_settings, listener, answering), name=f"lakebed-worker-{number}"
            )
            process.start()
            return process

        return run_workers(
            start,
            count=options.workers,
            shutdown_s=options.shutdown_s,
            started=lambda: report(answers),
            name=NAME,
        )


def _work(settings: ServerSettings, listener: socket.socket, answering: Event) -> None:
    sys.exit(serve_one(settings, listener, started=lambda _: answering.set(), first_setup=False))


def start_server(
    storage_url: str | os.PathLike[str],
    *,
    access_log: str | os.PathLike[str] | None = None,
    options: ServerOptions = _DEFAULT,
) -> Running:
    """Serve this machine in a thread of this process, for tests and notebooks; arguments and errors as `run_server`.

    Args:
        options: `ServerOptions.workers` and `ServerOptions.allow_remote` are ignored.
    """
    host = "127.0.0.1"
    listener = bind(host, 0, backlog=options.backlog)
    try:
        endpoint = url_of(host, listener, tls=options.tls)
        return Running(_settings(storage_url, endpoint, access_log, options, Environment()), listener)
    except BaseException:
        listener.close()
        raise


def _settings(
    storage_url: str | os.PathLike[str],
    endpoint: str,
    access_log: str | os.PathLike[str] | None,
    options: ServerOptions,
    environment: Environment,
) -> ServerSettings:
    """Return the settings of a process. Errors in them are found here, before anything is opened."""
    root, import_from = str(parse_url(storage_url)), options.import_from
    parse_allowed_folders(import_from)
    parse_allowed(options.repository_options.webhook_hosts)
    if options.tls is not None:
        options.tls.context()
    s3_key = _s3_key(options, environment)
    return ServerSettings(
        storage_url=root,
        endpoint=endpoint,
        access_log=None if access_log is None else os.fspath(access_log),
        signing_key=_signing_key(s3_key, environment),
        options=replace(options, import_from=tuple(map(os.fspath, import_from))),
        s3_key=s3_key,
    )


def _signing_key(s3_key: bytes | None, environment: Environment) -> bytes:
    """Return the key for URLs that the server signs. All servers with the same S3 key have the same one."""
    if s3_key is None:
        return environment.rng.getrandbits(8 * SIGNING_KEY_BYTES).to_bytes(SIGNING_KEY_BYTES, "big")
    return hashlib.blake2b(key=s3_key, digest_size=SIGNING_KEY_BYTES, person=_PERSON).digest()


def _s3_key(options: ServerOptions, environment: Environment) -> bytes | None:
    if options.s3_key_file is None:
        if options.s3_domains:
            raise InvalidRequest(
                "A domain of the S3 gateway needs its key: name the file with --s3-key.", kind="no_s3_key"
            )
        return None
    return load_or_make_key(options.s3_key_file, environment=environment)


def _check_workers(options: ServerOptions) -> None:
    workers = options.workers
    if workers < 1:
        raise InvalidRequest(f"{workers} workers cannot serve: use 1 or more.", kind="invalid_workers")
    if workers > 1 and not (options.metadata or "").startswith(_SHARED):
        raise InvalidRequest(
            f"{workers} workers need records that they can share: give --metadata postgresql://..., or use one worker.",
            kind="workers_need_postgresql",
        )


def _print(start: Started) -> None:
    sys.stdout.write("".join(line + "\n" for line in start.lines()))
    sys.stdout.flush()


CONTEXT: Final = multiprocessing.get_context("spawn")
"""Workers share only the socket with their parent, because forking a process with threads is not safe."""

_RESTART_S: Final = 1.0
_RESTART_S_MAX: Final = 30.0
_END_S: Final = 10.0
"""Time that a worker may take to end beyond its own limit."""


def run_workers(
    start: Callable[[int, Event], BaseProcess],
    *,
    count: int,
    shutdown_s: float,
    started: Callable[[], None],
    name: str,
) -> int:
    """Serve in `count` processes until a signal. Return the exit code.

    Args:
        start: starts the process with a number, made with `CONTEXT`. The process sets the event once it answers.
        shutdown_s: how long a worker may take for running requests.
        started: called once the first worker answers.
        name: prefix of messages on standard error.
    """
    answers = CONTEXT.Event()
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True
        for process in processes:
            if process.is_alive():
                process.terminate()

    processes = [start(number, answers) for number in range(count)]
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    pause_s, is_reported = _RESTART_S, False
    try:
        while not stopping:
            wait([process.sentinel for process in processes], timeout=pause_s)
            if answers.is_set() and not is_reported:
                started()
                is_reported = True
            dead = [number for number, process in enumerate(processes) if not process.is_alive()]
            for number in () if stopping else dead:
                code = processes[number].exitcode
                warn(f"{name}: worker {number} ended with {code}; starting a new one.")
                processes[number] = start(number, answers)
            pause_s = min(pause_s * 2, _RESTART_S_MAX) if dead else _RESTART_S
    finally:
        for process in processes:
            process.join(shutdown_s + _END_S)
            if process.is_alive():
                process.kill()
                process.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


_KEY_BYTES: Final = 32
_FORM: Final = re.compile(rb"[0-9a-f]{64}\n?")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def load_or_make_key(path: str | os.PathLike[str], *, environment: Environment) -> bytes:
    """Return the key in a file. Make the file if it is missing.

    Raises:
        InvalidRequest: kind ``invalid_s3_key``: the file cannot be read or made, other users can read it, or it has
            another content.
    """
    file = Path(path)
    try:
        _make(
            file,
            environment.rng.getrandbits(8 * _KEY_BYTES).to_bytes(_KEY_BYTES, "big"),
            mark=new_uuid(environment.rng),
        )
        mode, raw = file.stat().st_mode, file.read_bytes()
    except OSError as error:
        raise _invalid(file, f"it cannot be read or made ({error})") from error
    if os.name == "posix" and mode & _OTHERS:
        raise _invalid(file, f"others may read it: chmod 600 {file}")
    if _FORM.fullmatch(raw) is None:
        raise _invalid(file, f"it does not hold {2 * _KEY_BYTES} hexadecimal digits")
    return bytes.fromhex(raw.decode("ascii"))


def _make(file: Path, key: bytes, *, mark: str) -> None:
    """Make the file atomically, unless it exists.

    Args:
        mark: part of its temporary name. Process ids would not be unique: in a container every server has the same
            one, and the file that a crash left would block all later servers.
    """
    if file.exists():
        return
    new = file.with_name(f"{file.name}.{mark}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as stream:
            stream.write(key.hex() + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(new, file)  # does not replace a file that another process made meanwhile
        except FileExistsError:
            return
    finally:
        os.unlink(new)


def _invalid(file: Path, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"The S3 key {file} cannot be used: {what}. Name another file; one that is missing is made.",
        kind="invalid_s3_key",
    )
