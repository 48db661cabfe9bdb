"""Requests to URLs that users name: which hosts may be reached, and the connection to an address that was checked.

Owns: `AllowedHosts` and `post`. A webhook's URL comes from the administrator of one repository. The request leaves from
the server's machine, which reaches more than that person: its own loopback, its network, the metadata service of its
cloud. Invariants:

- A host is resolved once for a request, and the connection goes to a checked address of that answer. So it does not
  matter if the name resolves to another address a moment later.
- A redirect is not followed.
- Only the head of a reply is read. It must arrive within the time limit, even if its bytes arrive one by one.
- While a request waits, a server does the work of other clients.

docs/design/0030-limits-of-server-clients.md.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lakebed.clock import SystemClock
from lakebed.errors import InvalidRequest, Unavailable
from lakebed.http.slot_pool import leave_slot
from lakebed.texts import host_in_url

if TYPE_CHECKING:
    import urllib3
    from urllib3.exceptions import HTTPError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_PORTS: Final = {"http": 80, "https": 443}
_ADDRESSES_MAX: Final = 3
"""Most addresses of one host that are tried."""
_CLOCK: Final = SystemClock()
"""The clock for timeouts, which sockets follow, too."""

_NOT_PUBLIC: Final = tuple(
    map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "64:ff9b::/47", "2001::/23", "2002::/16"))
)
"""Networks that are not public, which some versions of `ipaddress` do not know: those for special purposes, addresses
that contain an IPv4 address to which a gateway may forward, and a service of Azure's machines."""


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Hosts that may be reached although their addresses are not public.

    Attributes:
        names: host names in lower case, each with its only port, or None for every port.
        networks: networks of addresses, each with a port in the same way.
    """

    names: frozenset[tuple[str, int | None]] = frozenset()
    networks: tuple[tuple[Network, int | None], ...] = ()

    def has_name(self, host: str, port: int) -> bool:
        """Whether a name is listed."""
        name = host.rstrip(".").lower()
        return (name, None) in self.names or (name, port) in self.names

    def has_address(self, address: Address, port: int) -> bool:
        """Whether an address is listed."""
        return any(
            address.version == network.version and address in network and only in (None, port)
            for network, only in self.networks
        )


def parse_allowed(entries: Sequence[str]) -> AllowedHosts:
    """Parse the hosts of a setting.

    Args:
        entries: each a host name, an address or a network such as ``10.0.0.0/8``; a name or an address may have a port
            behind a colon, an IPv6 address then in brackets.

    Raises:
        InvalidRequest: kind ``invalid_webhook_host``.
    """
    names: set[tuple[str, int | None]] = set()
    networks: list[tuple[Network, int | None]] = []
    for entry in entries:
        try:
            networks.append((ip_network(entry.strip("[]"), strict=False), None))
            continue
        except ValueError:
            pass  # a name, or an entry with a port
        try:
            parts = urlsplit(f"//{entry}")
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port = "", None
        if not host or parts.netloc != entry or "@" in entry or any(letter.isspace() for letter in entry):
            raise InvalidRequest(
                f"{entry!r} is not a host that webhooks may reach: give a name, an address or a network, such as "
                "ci.example, ci.example:8080, 127.0.0.1 or 10.0.0.0/8.",
                kind="invalid_webhook_host",
            )
        try:
            networks.append((ip_network(host), port))
        except ValueError:
            names.add((host.rstrip("."), port))
    return AllowedHosts(frozenset(names), tuple(networks))


def post(
    url: str,
    body: bytes,
    *,
    timeout_ms: int,
    allowed: AllowedHosts,
    owner: str,
    headers: Mapping[str, str] | None = None,
) -> int:
    """Send a JSON body to a URL, once.

    Args:
        url: ``http://`` or ``https://``; a user and a password in it are not sent.
        timeout_ms: limit for everything after the resolution of the name.
        allowed: hosts whose addresses need not be public.
        owner: the repository on whose behalf it is sent.
        headers: more headers; they do not replace those that every request has.

    Returns:
        The status of the reply. The body is not read.

    Raises:
        InvalidRequest: kind ``webhook_host_refused``: the host has no address that may be reached; nothing was sent.
        Unavailable: kind ``no_answer``; the request may have had an effect. Kind ``busy_outside``: nothing was sent.
    Cost: 1 resolution of the name and 1 connection.
    """
    # TLS and HTTP take long to load, and only a webhook needs them.
    from urllib3.exceptions import HTTPError
    from urllib3.util import parse_url

    parts = urlsplit(url)
    port = parts.port or _PORTS[parts.scheme]
    try:
        host = (parts.hostname or "").encode("idna").decode()
        target = parse_url(url).request_uri
    except (UnicodeError, HTTPError) as error:
        raise Unavailable("was not called: its URL cannot be read", kind="no_answer") from error
    shown_host = host_in_url(host)
    headers_sent = {
        **(headers or {}),
        "Host": shown_host if parts.port is None else f"{shown_host}:{port}",
        "Content-Type": "application/json",
        "User-Agent": "lakebed",
    }
    with leave_slot(owner):
        addresses = _addresses(host, port, allowed=allowed)[:_ADDRESSES_MAX]
        end_s = _CLOCK.monotonic_s() + timeout_ms / 1000
        problem: HTTPError | None = None
        for address in addresses:
            with _pool(parts.scheme, str(address), port, host=host, end_s=end_s) as pool:
                status, problem, is_sent = _ask(pool, target, body, headers_sent)
            if status is not None:
                return status
            if is_sent:
                break
    name = type(problem).__name__
    raise Unavailable(f"did not answer within {timeout_ms:,} ms ({name})", kind="no_answer") from problem


def _ask(
    pool: urllib3.HTTPConnectionPool, target: str, body: bytes, headers: Mapping[str, str]
) -> tuple[int | None, HTTPError | None, bool]:
    """Send the request. Returns the status of the reply, or the error, and whether the request may have been sent."""
    from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

    try:
        reply = pool.urlopen(
            "POST", target, body=body, headers=headers, redirect=False, retries=False, preload_content=False
        )
    except (NewConnectionError, ConnectTimeoutError) as error:
        return None, error, False  # another address of the host may answer
    except HTTPError as error:
        return None, error, True
    reply.close()
    return int(reply.status), None, True


class _TimedBytes(io.RawIOBase):
    """The bytes of a socket until a deadline. Each wait is limited to the time left, so slow bytes do not extend it."""

    def __init__(self, source: socket.socket, end_s: float) -> None:
        self._source = source
        self._end_s = end_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._end_s - _CLOCK.monotonic_s()
        if left_s <= 0:
            raise TimeoutError("the time of the request is over")
        self._source.settimeout(left_s)
        return self._source.recv_into(buffer)


def _pool(scheme: str, address: str, port: int, *, host: str, end_s: float) -> urllib3.HTTPConnectionPool:
    """A pool of connections to an address of a host. The certificate must be the host's. All I/O ends at `end_s`."""
    from http.client import HTTPResponse

    import urllib3

    from lakebed.http.asking import SendingOnce, SendingOnceEncrypted

    class Reply(HTTPResponse):
        def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
            super().__init__(sock, *args, **kwargs)
            self.fp.close()
            self.fp = io.BufferedReader(_TimedBytes(sock, end_s))

    class Plain(SendingOnce):
        response_class = Reply

    class Secure(SendingOnceEncrypted):
        response_class = Reply

    timeout = urllib3.Timeout(total=max(0.001, end_s - _CLOCK.monotonic_s()))
    pool: urllib3.HTTPConnectionPool
    if scheme == "http":
        pool = urllib3.HTTPConnectionPool(address, port, timeout=timeout)
        pool.ConnectionCls = Plain
    else:
        pool = urllib3.HTTPSConnectionPool(address, port, timeout=timeout, server_hostname=host, assert_hostname=host)
        pool.ConnectionCls = Secure
    return pool


def _addresses(host: str, port: int, *, allowed: AllowedHosts) -> list[Address]:
    """The addresses of a host that may be reached, in the order of the resolver."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable("was not called: the name of its host cannot be resolved", kind="no_answer") from error
    addresses = [ip_address(str(place[0])) for *_, place in infos]
    if not allowed.has_name(host, port):
        addresses = [address for address in addresses if _is_allowed(address, port, allowed=allowed)]
    if not addresses:
        raise InvalidRequest(
            "was not called: its host has no public address, and is not on the list of other hosts that webhooks may "
            "reach (lakebed serve --allow-webhook HOST, RepositoryOptions.webhook_hosts)",
            kind="webhook_host_refused",
        )
    return list(dict.fromkeys(addresses))


def _is_allowed(address: Address, port: int, *, allowed: AllowedHosts) -> bool:
    """Whether an address is public or listed. An IPv4 address mapped to IPv6 counts as the IPv4 address."""
    real_address = address.ipv4_mapped if isinstance(address, IPv6Address) and address.ipv4_mapped else address
    if allowed.has_address(real_address, port) or allowed.has_address(address, port):
        return True
    return _is_public(real_address)


def _is_public(address: Address) -> bool:
    return (
        address.is_global
        and not any(address in network for network in _NOT_PUBLIC if network.version == address.version)
        and not (
            address.is_private
            or address.is_loopback
            or address.is_link_local
            or address.is_multicast
            or address.is_reserved
            or address.is_unspecified
            or (isinstance(address, IPv6Address) and address.is_site_local)
        )
    )
