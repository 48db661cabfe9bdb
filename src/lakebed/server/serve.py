"""The entrance: check what was asked, bind, and serve until told to stop.

Owns: `run_server`, `start_server`, and what may be bound. It binds before anything is opened, so that the lease on the
embedded database names the very endpoint to which others are sent. One process owns an embedded database, so several
workers need records that they can share: ``metadata="postgresql://..."``.

Nothing is encrypted here: a proxy in front of the server ends TLS. By default it listens on this machine only.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from lakebed.errors import InvalidRequest, Unavailable
from lakebed.objects.path import parse_url
from lakebed.repo.import_places import parse_places
from lakebed.repo.options import RepositoryOptions
from lakebed.repo.outbound import parse_allowed
from lakebed.runtime import Environment
from lakebed.server.lifecycle import Running, first_key, open_records, serve_one, told_of
from lakebed.server.options import ServerOptions
from lakebed.server.settings import ServerSettings, Started
from lakebed.server.signing import SIGNING_KEY_BYTES
from lakebed.server.workers import run_workers

__all__ = ["run_server", "start_server"]

_PORT_MAX: Final = 65_535
_SHARED: Final = ("postgresql://", "postgres://")


def run_server(
    storage_url: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    metadata: str | None = None,
    workers: int = 1,
    allow_remote: bool = False,
    storage_options: Mapping[str, str] | None = None,
    import_from: Sequence[str] = (),
    allow_webhooks: Sequence[str] = (),
    access_log: str | os.PathLike[str] | None = "-",
    take_over: bool = False,
    options: ServerOptions | None = None,
    repository_options: RepositoryOptions | None = None,
    started: Callable[[Started], None] | None = None,
) -> int:
    """Serve the repositories of a storage over HTTP until SIGTERM or SIGINT.

    Args:
        storage_url: a folder, or a URL such as ``s3://bucket/lake``.
        host: where to listen; what other machines can reach needs `allow_remote`.
        port: 0: a free one, which `started` is told.
        metadata: where the records are, such as ``postgresql://...``; None: in the storage, owned by this process.
        workers: processes that serve; more than one needs records that they can share.
        allow_remote: listen to other machines too. Nothing is encrypted: put a proxy that ends TLS in front.
        storage_options: credentials and endpoints of the storage.
        import_from: URLs below which objects may be imported or staged: whoever may write can read what is there. Keys
            that are limited to some repositories may import only from places given as ``repository=URL``. Of the
            storage itself nothing may be but a folder that is named here, and never a store or the records.
        allow_webhooks: hosts that webhooks may reach although their addresses are not public: names, addresses,
            networks, as `RepositoryOptions.webhook_hosts`.
        access_log: ``"-"`` is standard error, else a file that is appended to; None: no log.
        take_over: also when another process owns the records; that one is over then.
        options: limits and intervals.
        repository_options: settings of repositories.
        started: is told where the server answers and, at the very first start, the first access key; None: printed.

    Returns:
        The exit code: 0.

    Raises:
        InvalidRequest: kind ``remote_host``, ``workers_need_postgresql``, ``invalid_address``,
            ``invalid_webhook_host``; or the storage cannot be opened as it is named.
        Unavailable: kind ``port_in_use``.
        Conflict: kind ``owned``, with ``endpoint=`` where the owner serves.
    """
    _check(host, workers=workers, metadata=metadata, allow_remote=allow_remote)
    environment = Environment()
    tell = started or _print
    with _bound(host, port, options=options or ServerOptions()) as listener:
        settings = _settings(
            storage_url,
            host=host,
            listener=listener,
            metadata=metadata,
            storage_options=storage_options,
            import_from=import_from,
            access_log=access_log,
            take_over=take_over,
            options=options,
            repository_options=_with_webhooks(repository_options, allow_webhooks),
            environment=environment,
            durable=True,
        )
        if workers == 1:
            return serve_one(settings, listener, started=tell)
        with open_records(settings, environment=environment) as repositories:
            made = first_key(repositories, settings)
        told = told_of(settings, made)
        return run_workers(settings, listener, count=workers, told=told, started=tell)


def start_server(
    storage_url: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    metadata: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    import_from: Sequence[str] = (),
    allow_webhooks: Sequence[str] = (),
    access_log: str | os.PathLike[str] | None = None,
    take_over: bool = False,
    durable: bool = True,
    options: ServerOptions | None = None,
    repository_options: RepositoryOptions | None = None,
    environment: Environment | None = None,
) -> Running:
    """Serve in a thread of this process, for tests and notebooks; arguments and errors as `run_server`.

    Args:
        durable: False does not wait for the disk, on local folders.
        environment: clock, randomness and concurrency.
    """
    _check(host, workers=1, metadata=metadata, allow_remote=False)
    environment = environment or Environment()
    listener = _bound(host, port, options=options or ServerOptions())
    try:
        settings = _settings(
            storage_url,
            host=host,
            listener=listener,
            metadata=metadata,
            storage_options=storage_options,
            import_from=import_from,
            access_log=access_log,
            take_over=take_over,
            options=options,
            repository_options=_with_webhooks(repository_options, allow_webhooks),
            environment=environment,
            durable=durable,
        )
        return Running(settings, listener, environment=environment)
    except BaseException:
        listener.close()
        raise


def _settings(
    storage_url: str | os.PathLike[str],
    *,
    host: str,
    listener: socket.socket,
    metadata: str | None,
    storage_options: Mapping[str, str] | None,
    import_from: Sequence[str],
    access_log: str | os.PathLike[str] | None,
    take_over: bool,
    options: ServerOptions | None,
    repository_options: RepositoryOptions,
    environment: Environment,
    durable: bool,
) -> ServerSettings:
    root = str(parse_url(storage_url))
    parse_places(import_from)  # what is wrong is told before anything is opened
    shown = f"[{host}]" if ":" in host else host
    return ServerSettings(
        storage_url=root,
        metadata=metadata,
        endpoint=f"http://{shown}:{listener.getsockname()[1]}",
        storage_options=storage_options,
        import_from=tuple(map(os.fspath, import_from)),
        access_log=None if access_log is None else os.fspath(access_log),
        signing_key=environment.rng.getrandbits(8 * SIGNING_KEY_BYTES).to_bytes(SIGNING_KEY_BYTES, "big"),
        options=options or ServerOptions(),
        repository_options=repository_options,
        take_over=take_over,
        durable=durable,
    )


def _with_webhooks(options: RepositoryOptions | None, hosts: Sequence[str]) -> RepositoryOptions:
    """Options of repositories with more hosts for webhooks. Raises `InvalidRequest` for what is not a host."""
    given = options or RepositoryOptions()
    allowed = (*given.webhook_hosts, *hosts)
    parse_allowed(allowed)
    return replace(given, webhook_hosts=allowed)


def _check(host: str, *, workers: int, metadata: str | None, allow_remote: bool) -> None:
    if workers < 1:
        raise InvalidRequest(f"{workers} workers cannot serve: use 1 or more.", kind="invalid_workers")
    if workers > 1 and not (metadata or "").startswith(_SHARED):
        raise InvalidRequest(
            f"{workers} workers need records that they can share: give --metadata postgresql://..., or use one worker.",
            kind="workers_need_postgresql",
        )
    if not allow_remote and not _is_loopback(host):
        raise InvalidRequest(
            f"{host} can be reached from other machines, and nothing is encrypted: listen on 127.0.0.1 behind a proxy "
            "that ends TLS, or say that other machines are meant (--allow-remote).",
            kind="remote_host",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bound(host: str, port: int, *, options: ServerOptions) -> socket.socket:
    if not 0 <= port <= _PORT_MAX:
        raise InvalidRequest(
            f"{port} is no port: use 1 to {_PORT_MAX}, or 0 for one that is free.", kind="invalid_address"
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=options.backlog)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"Port {port} of {host} is in use: stop what listens there, or choose another port.", kind="port_in_use"
            ) from error
        raise InvalidRequest(
            f"The server cannot listen at {host}, port {port}: {error}.", kind="invalid_address"
        ) from error


def _print(told: Started) -> None:
    sys.stdout.write("".join(line + "\n" for line in told.lines()))
    sys.stdout.flush()
