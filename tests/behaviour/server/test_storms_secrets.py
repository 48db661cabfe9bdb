"""After a full session no secret is anywhere in clear: logs, records, objects, errors, representations."""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import urllib3

from lakebed.errors import LakebedError
from lakebed.key_value.open import open_key_value
from lakebed.repo import open_all
from lakebed.repo.repositories import local_catalog
from worlds.repo.server_process import ServerProcess

SIGNED = re.compile(r"(?i)(signature|X-Amz-Signature|X-Amz-Credential)=[^\s&\"]+")


class Session:
    """Requests with a key, whose replies of errors are kept."""

    def __init__(self, served: ServerProcess) -> None:
        self._served = served
        self._pool = urllib3.PoolManager(retries=False)
        self.headers = served.headers
        self.errors: list[str] = []

    def ask(self, method: str, place: str, body: Any = None, **query: str) -> urllib3.BaseHTTPResponse:
        """One request."""
        url = place if place.startswith("http") else f"{self._served.endpoint}/api/v1{place}"
        url += "?" + urllib.parse.urlencode(query) if query else ""
        sent = json.dumps(body) if isinstance(body, dict) else body
        reply = self._pool.request(method, url, body=sent, headers=self.headers, redirect=False)
        if reply.status >= 400:
            self.errors.append(f"{reply.data!r} {dict(reply.headers)}")
        return reply


def session(served: ServerProcess) -> tuple[set[str], list[str], list[str]]:
    """A session with everything that knows a secret: the secrets, signatures, and what errors said."""
    item = Session(served)
    assert served.keys is not None
    secrets = {served.keys[1]}
    here = "/repositories/secretive"
    namespace = item.ask("GET", "/config").json()["storage_config"]["default_namespace_prefix"]
    made = item.ask("POST", "/repositories", {"name": "secretive", "storage_namespace": f"{namespace}/secretive"})
    assert made.status == 201, made.data
    for role in ("read", "write", "admin"):
        secrets.add(item.ask("POST", "/auth/keys", {"role": role}).json()["secret_access_key"])
    login = {"access_key_id": served.keys[0], "secret_access_key": served.keys[1]}
    answer = item.ask("POST", "/auth/login", login)
    assert answer.status == 200, answer.data
    token = answer.json()["token"]
    secrets |= {token, token.partition(".")[2] or token}
    item.headers = {"authorization": f"Bearer {token}"}
    assert item.ask("GET", "/user").status == 200
    item.headers = served.headers
    assert item.ask("POST", f"{here}/branches/main/objects", b"x", path="a").status == 201
    place = item.ask("GET", f"{here}/branches/main/staging/backing", path="p", presign="true").json()
    signatures = [place["presigned_url"]] if place.get("presigned_url") else []
    for url in signatures[:]:
        plain = urllib3.PoolManager(retries=False)
        assert plain.request("PUT", url, body=b"1").status == 200
        plain.request("PUT", url, body=b"2")
        plain.request("PUT", url[:-3] + "xyz", body=b"2")
    for method in ("objects", "objects/stat"):
        reply = item.ask("GET", f"{here}/refs/main/{method}", path="a", presign="true")
        signatures += [reply.headers["Location"]] if "Location" in reply.headers else []
        if method.endswith("stat"):
            signatures += [reply.json()["physical_address"]]
    item.ask("POST", f"{here}/branches/main/commits", {"message": "m"})
    other = served.keys[1][:-1] + ("x" if served.keys[1][-1] != "x" else "y")
    for wrong in ("wrong", other, served.keys[1] + "x"):
        secrets.add(wrong) if len(wrong) > 10 else None
        item.headers = urllib3.make_headers(basic_auth=f"{served.keys[0]}:{wrong}")
        assert item.ask("GET", "/user").status == 401
        item.headers = {"authorization": f"Bearer {served.keys[0]}.{wrong}"}
        assert item.ask("GET", "/user").status == 401
        item.ask("POST", "/auth/login", {**login, "secret_access_key": wrong})
    item.headers = {"authorization": f"Basic {served.keys[1]}"}
    assert item.ask("GET", "/user").status == 401
    item.headers = served.headers
    item.ask("POST", "/auth/login", {"access_key_id": served.keys[1]})
    item.ask("POST", "/auth/login", {"access_key_id": 1, "secret_access_key": served.keys[1]})
    audit = item.ask("GET", "/auth/audit")
    assert audit.status == 200
    metrics = item.ask("GET", served.endpoint + "/metrics")
    return secrets, signatures, [*item.errors, audit.data.decode(), metrics.data.decode()]


def texts_of(folder: Path) -> Iterable[tuple[str, bytes]]:
    """Every file."""
    return ((str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file())


def assert_nowhere(secrets: set[str], texts: Iterable[tuple[str, bytes]]) -> None:
    """No text has any of the secrets, plain, or as the header that carries it."""
    forms = [form for secret in secrets for form in (secret.encode(), base64.b64encode(secret.encode())[:-4])]
    forms += [urllib.parse.quote(secret, safe="").encode() for secret in secrets]
    for where, text in texts:
        for form in forms:
            assert form not in text, f"a secret is in {where}"


def test_no_secret_is_left_on_a_folder(tmp_path: Path) -> None:
    """Keys, tokens and signatures of a session are in no log, record, object, audit line, metric or error."""
    with ServerProcess(str(tmp_path / "lake"), tmp_path / "logs") as served:
        secrets, signatures, messages = session(served)
        assert served.stop() == 0
        assert not served.tracebacks()
        assert_nowhere(secrets, [*texts_of(tmp_path), *(("an error", text.encode()) for text in messages)])
        log = served.told()
        assert '"path":' in log
        assert not SIGNED.search(log), SIGNED.findall(log)
        for url in signatures:
            for name, value in urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query):
                assert name != "signature" or value not in log
    with open_all(tmp_path / "lake") as home, local_catalog(home).key_value.snapshot() as snapshot:
        rows = [(key.decode(errors="replace"), key + value) for key, value in snapshot.scan()]
        assert any(key.startswith("keys/") for key, _ in rows)
        assert any(key.startswith("audit/") for key, _ in rows)
        assert_nowhere(secrets, rows)


def test_no_secret_is_left_on_a_bucket_and_postgresql(tmp_path: Path, postgresql: Any, s3_server: Any) -> None:
    """The same with the store's secret, its signed URLs, and PostgreSQL's password."""
    metadata = postgresql.make_database()
    settings = {name.upper(): value for name, value in s3_server.options.items()}
    environment = {**settings, "AWS_ALLOW_HTTP": "1"}
    with ServerProcess(
        s3_server.url(), tmp_path / "logs", arguments=["--metadata", metadata], environment=environment
    ) as served:
        secrets, signatures, messages = session(served)
        assert any("X-Amz-Signature" in url for url in signatures)
        assert served.stop() == 0
        assert not served.tracebacks()
        secrets |= {s3_server.options["aws_secret_access_key"], postgresql.password}
        secrets.add(urllib.parse.unquote(postgresql.password))
        assert_nowhere(secrets, [*texts_of(tmp_path), *(("an error", text.encode()) for text in messages)])
        assert not SIGNED.search(served.told())
    with closing(open_key_value(metadata)) as key_value, key_value.snapshot() as snapshot:
        assert_nowhere(secrets, [(key.decode(errors="replace"), key + value) for key, value in snapshot.scan()])
        assert_nowhere(secrets, [("a repr", repr(key_value).encode())])


def test_a_wrong_password_is_in_no_error(tmp_path: Path, postgresql: Any) -> None:
    """The error of a server that cannot reach its records does not show the password, with a mistake in any part."""
    url = postgresql.make_database()
    secret = "a-very-secret-password"
    for wrong in (
        postgresql.url("postgres", password=secret),
        url.replace("127.0.0.1", "host.invalid").replace(postgresql.password, secret),
        f"postgresql://lakebed:{secret}@127.0.0.1:1/x",
        f"postgresql://lakebed:{secret}@127.0.0.1:notaport/x",
        f"postgresql://lakebed:{secret}%zz@[::1/x",
    ):
        with pytest.raises(LakebedError) as caught:
            open_all(tmp_path / "lake", metadata=wrong)
        chain: BaseException | None = caught.value
        while chain is not None:
            assert secret not in str(chain) + repr(chain) + repr(getattr(chain, "facts", ""))
            chain = chain.__cause__ or chain.__context__
    with (
        pytest.raises(AssertionError) as ended,
        ServerProcess(str(tmp_path / "lake"), tmp_path / "logs", arguments=["--metadata", wrong]),
    ):
        pytest.fail("it serves")
    assert secret not in str(ended.value)
    assert "Traceback" not in str(ended.value)
