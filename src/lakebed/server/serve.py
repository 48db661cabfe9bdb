"""The entry point: check what was asked, bind, and serve until asked to stop.

Owns: `run_server` and `start_server`. They bind before anything is opened, so that the lease on the embedded database
names the very endpoint to which others are sent. One process owns an embedded database, so several workers need records
that they can share: ``metadata="postgresql://..."``.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.http.listening import bind, check_host, url_of
from lakebed.http.signing import SIGNING_KEY_BYTES
from lakebed.http.workers import CONTEXT, run_workers
from lakebed.objects.path import parse_url
from lakebed.repo.outside.import_policy import parse_allowed_folders
from lakebed.repo.outside.outbound import parse_allowed
from lakebed.runtime import Environment
from lakebed.server.lifecycle import NAME, Running, first_key, open_records, serve_one, startup_report
from lakebed.server.options import ServerOptions
from lakebed.server.s3.key_file import load_or_make_key
from lakebed.server.settings import ServerSettings, Started

_SHARED: Final = ("postgresql://", "postgres://")
_DEFAULT: Final = ServerOptions()
_PERSON: Final = b"lakebed urls"
"""Keeps the key of signed addresses apart from other uses of the S3 key."""


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
        with open_records(settings, environment=environment) as repositories:
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
    host: str = "127.0.0.1",
    port: int = 0,
    access_log: str | os.PathLike[str] | None = None,
    options: ServerOptions = _DEFAULT,
    environment: Environment | None = None,
) -> Running:
    """Serve in a thread of this process, for tests and notebooks; arguments and errors as `run_server`.

    Args:
        options: `ServerOptions.workers` and `ServerOptions.allow_remote` are ignored.
    """
    check_host(host, allow_remote=False)
    environment = environment or Environment()
    listener = bind(host, port, backlog=options.backlog)
    try:
        settings = _settings(storage_url, url_of(host, listener, tls=options.tls), access_log, options, environment)
        return Running(settings, listener, environment=environment)
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
    """The settings of a process. What is wrong with them is found here, before anything is opened."""
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
    """The key of addresses that the server signs: the same in all servers that have the S3 key."""
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


def _print(started: Started) -> None:
    sys.stdout.write("".join(line + "\n" for line in started.lines()))
    sys.stdout.flush()
