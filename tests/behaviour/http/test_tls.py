"""Servers with a certificate: what clients trust, whom servers let in, and certificates that are replaced."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from lakebed import repo
from lakebed.errors import InvalidRequest, Unavailable
from lakebed.fleet.http_ports import HttpControl
from lakebed.fleet.log.client import HttpLog
from lakebed.http import asking
from lakebed.http.listening import check_host
from lakebed.http.tls import CA_VARIABLE, CERTIFICATE_VARIABLE, CLEAR_VARIABLE, Tls
from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from worlds.errors import raises
from worlds.waiting import wait_until

YESTERDAY = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)


class Authority:
    """An authority of a test, which writes certificates into files: each file has the key and the chain."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.file = str(folder / "ca.pem")
        self.ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str, *hosts: str, expires: datetime.datetime | None = None) -> str:
        """The file of a new certificate for some hosts; one of the name is replaced as a whole."""
        leaf = self.ca.issue_cert(*hosts, not_after=expires)
        fresh = self.folder / f"{name}.new"
        leaf.private_key_and_cert_chain_pem.write_to_path(fresh)
        os.replace(fresh, self.folder / name)
        return str(self.folder / name)


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """An authority that clients trust."""
    made = Authority(tmp_path)
    monkeypatch.setenv(CA_VARIABLE, made.file)
    return made


@contextmanager
def serving(folder: Path, tls: Tls) -> Iterator[Running]:
    """A server of repositories with a certificate."""
    with start_server(folder / "lake", options=ServerOptions(durable=False, tls=tls)) as running:
        yield running


def round_trip(running: Running) -> bytes:
    """What a client reads that it has just written."""
    started = running.started
    access = repo.Access(access_key=started.access_key, secret=started.secret)
    with repo.open(f"{started.endpoint}/analytics", create=True, access=access) as served:
        branch = served.branch()
        branch.put("a", b"x" * 300_000)
        return branch.get("a")


def serial(running: Running) -> int:
    """The number of the certificate that a new connection is shown."""
    parts = urlsplit(running.started.endpoint)
    context = ssl.create_default_context(cafile=os.environ[CA_VARIABLE])
    with (
        socket.create_connection((parts.hostname, parts.port), 30) as plain,
        context.wrap_socket(plain, server_hostname=parts.hostname) as secured,
    ):
        certificate = secured.getpeercert()
    assert certificate is not None
    return int(str(certificate["serialNumber"]), 16)


def test_clients_check_the_certificate(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that trusts the authority works; one that does not says so, and sends nothing."""
    with serving(tmp_path, Tls(certificate=authority.issue("server.pem", "127.0.0.1"))) as running:
        assert running.started.endpoint.startswith("https://127.0.0.1:")
        assert round_trip(running) == b"x" * 300_000
        monkeypatch.delenv(CA_VARIABLE)
        with raises(Unavailable, "untrusted_certificate", match=r"cannot be trusted.*LAKEBED_TLS_CA"):
            round_trip(running)


@pytest.mark.parametrize(
    ("hosts", "expires", "reason"),
    [(["example.org"], None, "not valid for"), (["127.0.0.1"], YESTERDAY, "expired")],
    ids=["another host", "expired"],
)
def test_a_certificate_that_does_not_fit(
    authority: Authority, tmp_path: Path, hosts: list[str], expires: datetime.datetime | None, reason: str
) -> None:
    """A certificate of another host, or one that has expired, is refused by clients with the reason."""
    with (
        serving(tmp_path, Tls(certificate=authority.issue("server.pem", *hosts, expires=expires))) as running,
        raises(Unavailable, "untrusted_certificate", match=reason),
    ):
        round_trip(running)


def test_callers_show_a_certificate(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an authority of callers, one without its certificate is refused, one with it works."""
    tls = Tls(certificate=authority.issue("server.pem", "127.0.0.1"), client_ca=authority.file)
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").issue("stranger.pem", "stranger.example")
    with serving(tmp_path, tls) as running:
        with pytest.raises(Unavailable):
            round_trip(running)
        monkeypatch.setenv(CERTIFICATE_VARIABLE, stranger)
        with pytest.raises(Unavailable):
            round_trip(running)
        monkeypatch.setenv(CERTIFICATE_VARIABLE, authority.issue("client.pem", "client.example"))
        assert round_trip(running) == b"x" * 300_000


def test_a_certificate_is_replaced_without_a_restart(
    authority: Authority, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """New connections get the new certificate; files that do not fit leave the old one in use."""
    file = authority.issue("server.pem", "127.0.0.1")
    with serving(tmp_path, Tls(certificate=file)) as running:
        first = serial(running)
        authority.issue("server.pem", "127.0.0.1")
        wait_until(lambda: serial(running) != first)
        second = serial(running)
        Path(file).write_text("half of a fi")
        wait_until(lambda: "was not replaced" in capfd.readouterr().err)
        assert serial(running) == second
        authority.issue("server.pem", "127.0.0.1")
        wait_until(lambda: serial(running) != second)
        assert round_trip(running) == b"x" * 300_000


def test_clients_outlive_the_replacement_of_their_certificate(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificate and key are two files: between their replacements they do not fit, and requests go on as before."""
    monkeypatch.setattr(asking, "_FILES_S", 0.0)
    with (
        serving(tmp_path, Tls(certificate=authority.issue("server.pem", "127.0.0.1"))) as running,
        ExitStack() as closing,  # before the server ends, which waits for its connections
    ):
        file = authority.issue("client.pem", "client.example")
        monkeypatch.setenv(CERTIFICATE_VARIABLE, file)
        connections = asking.Connections(server_count=1, connection_count_max=1)
        closing.callback(connections.close)
        endpoint = running.started.endpoint
        status = connections.request("GET", endpoint, "/_health").status
        old = connections._current_pool()
        closing.callback(old.clear)
        Path(file).write_text("half of a fi")
        assert connections.request("GET", endpoint, "/_health").status == status
        assert connections._current_pool() is old
        authority.issue("client.pem", "client.example")
        assert connections.request("GET", endpoint, "/_health").status == status
        assert connections._current_pool() is not old


def encrypted(authority: Authority, folder: Path) -> Tls:
    """A pair whose key has a passphrase."""
    leaf = authority.ca.issue_cert("127.0.0.1")
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    hidden = serialization.BestAvailableEncryption(b"secret")
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
    )
    leaf.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    return Tls(certificate=str(folder / "cert.pem"), key=str(folder / "key.pem"))


def mismatched(authority: Authority, folder: Path) -> Tls:
    """A certificate with the key of another."""
    return Tls(certificate=authority.issue("a.pem", "127.0.0.1"), key=authority.issue("b.pem", "127.0.0.1"))


def garbage(authority: Authority, folder: Path) -> Tls:
    """A file of something else."""
    (folder / "rubbish.pem").write_bytes(b"\x00rubbish")
    return Tls(certificate=str(folder / "rubbish.pem"))


def absent(authority: Authority, folder: Path) -> Tls:
    """A file that is not there."""
    return Tls(certificate=str(folder / "nothing.pem"))


def no_authority(authority: Authority, folder: Path) -> Tls:
    """A certificate whose authority of callers is a key."""
    authority.ca.private_key_pem.write_to_path(folder / "ca-key.pem")
    return Tls(certificate=authority.issue("a.pem", "127.0.0.1"), client_ca=str(folder / "ca-key.pem"))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (encrypted, "passphrase"),
        (mismatched, "not a certificate with the key that fits it"),
        (garbage, "not a certificate with the key"),
        (absent, "No such file"),
        (no_authority, "it has no certificate"),
    ],
)
def test_files_that_are_no_certificate(
    authority: Authority, tmp_path: Path, make: Callable[[Authority, Path], Tls], reason: str
) -> None:
    """Each is refused with one sentence that names the file, before anything is opened; nothing is asked for."""
    tls = make(authority, tmp_path)
    with raises(InvalidRequest, "invalid_certificate", match=reason) as refused, serving(tmp_path, tls):
        pass
    assert str(tmp_path) in str(refused.value)
    assert not (tmp_path / "lake").exists()


def test_a_token_does_not_travel_in_clear_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """To another machine a token goes over TLS only, unless that is allowed; on this machine it may be unencrypted."""
    for opened in (
        lambda: HttpControl("http://10.1.2.3:8200", token="t"),
        lambda: HttpLog(["http://127.0.0.1:1", "http://log.example:8300"], token="t"),
    ):
        with raises(InvalidRequest, "clear_token", match="unencrypted"):
            opened()
        with monkeypatch.context() as allowing:
            allowing.setenv(CLEAR_VARIABLE, "1")
            opened().close()
    HttpControl("https://10.1.2.3:8200", token="t").close()
    HttpControl("http://[::1]:8200", token="t").close()
    HttpControl("http://10.1.2.3:8200").close()


def test_other_machines_need_a_certificate() -> None:
    """An address that others reach is refused, unless there is a certificate or clear text is meant."""
    with pytest.raises(InvalidRequest, match="--tls-certificate"):
        check_host("0.0.0.0", allow_remote=False)
    check_host("0.0.0.0", allow_remote=False, tls=Tls(certificate="c.pem"))
    check_host("0.0.0.0", allow_remote=True)
