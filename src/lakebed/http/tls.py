"""TLS: the certificate of a server, the clients that it accepts, and the certificates that our clients trust.

Owns: `Tls`, the files of a server; `ServerCertificate`, which reads them again when they change; `client_context`, made
from the environment; the rule that clients send a token in clear text only to this machine. All files are in PEM. Does
not know: any service.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from lakebed.errors import InvalidRequest
from lakebed.log import warn

CA_VARIABLE: Final = "LAKEBED_TLS_CA"
"""The environment variable with a file of certificates that clients trust, instead of those of the system."""
CERTIFICATE_VARIABLE: Final = "LAKEBED_TLS_CERTIFICATE"
"""The environment variable with the file of the certificate that clients show to servers that ask for one."""
KEY_VARIABLE: Final = "LAKEBED_TLS_KEY"
"""The environment variable with the file of that certificate's key; without it, the certificate's file has the key."""
CLEAR_VARIABLE: Final = "LAKEBED_ALLOW_CLEAR"
"""The environment variable that lets tokens travel unencrypted to other machines, when it is ``1``."""

Signature = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The files of a server.

    Attributes:
        certificate: the server's certificate, and the chain behind it.
        key: the certificate's key; None: it is in the certificate's file.
        client_ca: authorities, one of which must have signed the certificate of a caller; None: callers need none.
    """

    certificate: str
    key: str | None = None
    client_ca: str | None = None

    def context(self) -> ssl.SSLContext:
        """The server's context for connections. Raises `InvalidRequest` (``invalid_certificate``)."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        load_pair(context, self.certificate, self.key)
        if self.client_ca is not None:
            load_ca(context, self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def files(self) -> list[str]:
        """All files, those of the pair first."""
        return [file for file in (self.certificate, self.key, self.client_ca) if file is not None]

    def export(self) -> None:
        """Let the clients of this process and of its child processes show and trust the same certificates.

        Variables of the environment that are set already stay unchanged.
        """
        for variable, file in ((CERTIFICATE_VARIABLE, self.certificate), (KEY_VARIABLE, self.key or self.certificate)):
            os.environ.setdefault(variable, file)
        if self.client_ca is not None:
            os.environ.setdefault(CA_VARIABLE, self.client_ca)


class ServerCertificate:
    """A server's context, whose files are read again when they change: a certificate is renewed without a restart.

    New connections get the new pair. A new file of callers' authorities adds to the earlier authorities, so removing an
    authority needs a restart. While files do not fit each other, as in the middle of their replacement, the old pair
    stays in use.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._signature = _signature(tls.files())
        self.context = tls.context()

    def refresh(self) -> bool:
        """Read the files again if they have changed; return whether they were loaded. Cost: 1 `stat` for each file."""
        signature = _signature(self._tls.files())
        if signature == self._signature:
            return False
        try:
            self._tls.context()  # a pair that does not fit would leave the live context with half of it
            load_pair(self.context, self._tls.certificate, self._tls.key)
            if self._tls.client_ca is not None:
                load_ca(self.context, self._tls.client_ca)
        except InvalidRequest as problem:
            if _signature(self._tls.files()) == signature:
                self._signature = signature  # warn once, until the files change again
                warn(f"The certificate was not replaced: {problem}")
            return False
        self._signature = signature
        return True


def client_files() -> list[str]:
    """The files that `client_context` reads now; empty: clients trust the system's authorities."""
    return [
        file for variable in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE) if (file := os.environ.get(variable))
    ]


def client_context() -> ssl.SSLContext | None:
    """Our clients' context for connections; None: the default, with the system's authorities and no certificate.

    Host names are always compared. Raises `InvalidRequest` (``invalid_certificate``).
    """
    if not client_files():
        return None
    ca, certificate = os.environ.get(CA_VARIABLE), os.environ.get(CERTIFICATE_VARIABLE)
    context = ssl.create_default_context()
    if ca:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_ca(context, ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate:
        load_pair(context, certificate, os.environ.get(KEY_VARIABLE) or None)
    return context


def client_signature() -> Signature:
    """The current signature of the clients' files, to detect changes. Cost: 1 `stat` for each file."""
    return _signature(client_files())


def check_clear(endpoints: Iterable[str]) -> None:
    """Refuse to send a token unencrypted to another machine.

    Raises `InvalidRequest` (``clear_token``), unless `CLEAR_VARIABLE` allows it.
    """
    if os.environ.get(CLEAR_VARIABLE) == "1":
        return
    for endpoint in endpoints:
        parts = urlsplit(endpoint)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise InvalidRequest(
                f"The token of the fleet would travel unencrypted to {parts.hostname}: serve it with TLS "
                f"(--tls-certificate) and name it https://..., or set {CLEAR_VARIABLE}=1 in a network that only "
                "the fleet can read.",
                kind="clear_token",
                url=endpoint,
            )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_pair(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Load a certificate with its key. Raises `InvalidRequest` (``invalid_certificate``)."""
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        where = certificate if key is None else f"{certificate} with the key {key}"
        raise _invalid(where, _reason(error, "it is not a certificate with the key that fits it")) from error


def load_ca(context: ssl.SSLContext, file: str) -> None:
    """Load certificates that are trusted. Raises `InvalidRequest` (``invalid_certificate``)."""
    try:
        context.load_verify_locations(cafile=file)
    except (OSError, ValueError) as error:
        raise _invalid(file, _reason(error, "it has no certificate")) from error


def _refuse_password() -> str:
    """Called for an encrypted key; OpenSSL would ask at the terminal."""
    raise ValueError("its key is encrypted, and a server starts without a person: give it without a passphrase")


def _reason(error: Exception, fault: str) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{fault}, in PEM ({error.reason or error})"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


def _invalid(where: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{where} cannot be used: {reason}.", kind="invalid_certificate", path=where)


def _signature(files: Iterable[str]) -> Signature:
    """Inode, size and time of each file; zeros for one that is missing."""
    signature = []
    for file in files:
        try:
            state = os.stat(file)
        except OSError:
            signature.append((0, 0, 0))
        else:
            signature.append((state.st_ino, state.st_size, state.st_mtime_ns))
    return tuple(signature)
