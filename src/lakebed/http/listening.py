"""The address at which a process listens: by default loopback. To serve other machines, it needs a certificate."""

from __future__ import annotations

import errno
import socket
from typing import Final

from lakebed.errors import InvalidRequest, Unavailable
from lakebed.http.tls import Tls, is_loopback
from lakebed.texts import host_in_url

_PORT_MAX: Final = 65_535


def check_host(host: str, *, allow_remote: bool, tls: Tls | None = None) -> None:
    """Refuse an address that other machines can reach without encryption, unless the caller allows it.

    Raises:
        InvalidRequest: kind ``remote_host``.
    """
    if tls is None and not allow_remote and not is_loopback(host):
        raise InvalidRequest(
            f"{host_in_url(host)} can be reached from other machines, and nothing is encrypted: give a certificate "
            "(--tls-certificate), listen on 127.0.0.1, or allow other machines all the same (--allow-remote).",
            kind="remote_host",
        )


def url_of(host: str, listener: socket.socket, *, tls: Tls | None = None) -> str:
    """The URL at which a bound socket answers."""
    return f"{'http' if tls is None else 'https'}://{host_in_url(host)}:{listener.getsockname()[1]}"


def bind(host: str, port: int, *, backlog: int) -> socket.socket:
    """A listening socket; port 0 means any free port.

    Raises:
        InvalidRequest: kind ``invalid_address``.
        Unavailable: kind ``port_in_use``.
    """
    if not 0 <= port <= _PORT_MAX:
        raise InvalidRequest(
            f"{port} is not a valid port: use 1 to {_PORT_MAX}, or 0 for a free one.", kind="invalid_address"
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"Port {port} of {host_in_url(host)} is in use: stop what listens there, or choose another port.",
                kind="port_in_use",
            ) from error
        raise InvalidRequest(
            f"The server cannot listen at {host_in_url(host)}, port {port}: {error}.", kind="invalid_address"
        ) from error
