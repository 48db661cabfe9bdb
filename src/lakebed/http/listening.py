"""The address at which a process listens. Loopback by default: a proxy in front of the server ends TLS."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Final

from lakebed.errors import InvalidRequest, Unavailable
from lakebed.texts import host_in_url

_PORT_MAX: Final = 65_535


def check_host(host: str, *, allow_remote: bool) -> None:
    """Refuse an address that other machines can reach, unless that is meant: nothing is encrypted.

    Raises:
        InvalidRequest: kind ``remote_host``.
    """
    if not allow_remote and not _is_loopback(host):
        raise InvalidRequest(
            f"{host_in_url(host)} can be reached from other machines, and nothing is encrypted: listen on 127.0.0.1 "
            "behind a proxy that ends TLS, or allow other machines (--allow-remote).",
            kind="remote_host",
        )


def url_of(host: str, listener: socket.socket) -> str:
    """The URL at which a bound socket answers."""
    return f"http://{host_in_url(host)}:{listener.getsockname()[1]}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int, *, backlog: int) -> socket.socket:
    """A listening socket; port 0 is a free one.

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
