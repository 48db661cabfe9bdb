"""Who may use a server: the first start, keys, roles, tokens, revocation, and the audit log."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import urllib3

from lakebed.runtime import Environment
from lakebed.server.audit import AuditLine, AuditLog
from lakebed.testing import ManualClock
from worlds.memory_key_value import MemoryKeyValue


def files_below(folder: Path) -> bytes:
    """Everything that is in a folder's files."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_the_first_start_tells_an_access_key_once(serve: Callable[..., Any], tmp_path: Path) -> None:
    """The first start makes an access key and prints its secret; later ones print none, and no file has it."""
    log = tmp_path / "access.log"
    first = serve(access_log=log)
    secret = first.started.secret
    lines = "\n".join(first.started.lines())
    assert first.started.access_key in lines
    assert secret in lines
    assert secret not in repr(first.started)
    headers = urllib3.make_headers(basic_auth=f"{first.started.access_key}:{secret}")
    assert urllib3.request("GET", first.started.endpoint + "/api/v1/user", headers=headers).status == 200
    first.stop()
    assert secret.encode() not in files_below(tmp_path)
    second = serve()
    assert second.started.access_key is None
    assert second.started.secret is None
    assert len(second.started.lines()) == 1
    assert urllib3.request("GET", second.started.endpoint + "/api/v1/user", headers=headers).status == 200


@pytest.mark.parametrize(
    "header",
    [None, "", "Basic", "Basic !!!", "Basic bm9jb2xvbg==", "Basic Og==", "Digest x", "Bearer", "Bearer x", "Bearer x.y",
     "Basic eDp5", "Basic //8=", "Bearer " + "x" * 5_000],
)  # fmt: skip
def test_whoever_cannot_say_who_they_are_is_refused(client: Any, header: str | None) -> None:
    """No credential, one that cannot be read, or a wrong one: 401, one sentence, and how to authenticate."""
    client.headers = {} if header is None else {"Authorization": header}
    answer = client.ask("GET", "/user")
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"].startswith("Basic")
    assert answer.message.endswith(".")


def test_a_token_stands_for_its_access_key(client: Any) -> None:
    """A login gives a token, sent as Bearer, with the rights of the key; the key itself can be sent so too."""
    access_key, secret = _credential(client)
    answer = client.ask("POST", "/auth/login", {"access_key_id": access_key, "secret_access_key": secret})
    assert answer.status == 200
    for token in (answer.json["token"], f"{access_key}.{secret}", f"{access_key}:{secret}"):
        client.headers = {"Authorization": f"Bearer {token}"}
        assert client.ask("GET", "/user").json["user"]["id"] == access_key
    assert answer.json["token_expiration"] > 0
    for wrong in (
        {"access_key_id": access_key, "secret_access_key": "no"},
        {"access_key_id": "", "secret_access_key": ""},
    ):
        assert client.ask("POST", "/auth/login", wrong).status == 401


def _credential(client: Any) -> tuple[str, str]:
    made = client.ask("POST", "/auth/keys", {"role": "admin"}).json
    return made["access_key_id"], made["secret_access_key"]


WRITES = [
    ("POST", ":/branches/main/objects", b"x", {"path": "a"}),
    ("POST", ":/branches/main/commits", {"message": "m"}, {}),
    ("DELETE", ":/branches/main/objects", None, {"path": "a"}),
    ("POST", ":/branches", {"name": "dev", "source": "main"}, {}),
    ("POST", ":/tags", {"id": "t", "ref": "main"}, {}),
    ("PUT", ":/branches/main", {"type": "reset"}, {}),
    ("GET", ":/branches/main/staging/backing", None, {"path": "a"}),
]
SETTINGS = [
    ("PUT", ":/settings/branch_protection", [{"pattern": "main"}], {}),
    ("POST", "/auth/keys", {"role": "admin"}, {}),
    ("GET", "/auth/keys", None, {}),
    ("GET", "/auth/audit", None, {}),
    ("DELETE", ":", None, {}),
]


def test_a_role_permits_what_it_says(client: Any) -> None:
    """Readers read, writers also write, and settings, keys and deletions of repositories are for admins."""
    reader, writer = client.new_key("read"), client.new_key("write")
    for method, place, body, query in WRITES:
        refused = reader.ask(method, place, body, **query)
        assert refused.status == 403, place
        assert "role" in refused.message
    for item in (reader, writer):
        for method, place, body, query in SETTINGS:
            assert item.ask(method, place, body, **query).status == 403, place
        assert item.ask("GET", ":").status == 200
        assert item.listed() == []
    for method, place, body, query in WRITES:
        assert writer.ask(method, place, body, **query).status < 300, place


def test_a_key_can_be_limited_to_repositories(client: Any) -> None:
    """A limited key sees, lists and creates only its repositories; of others it learns nothing."""
    for name in ("other", "third"):
        client.ask("POST", "/repositories", {"name": name, "storage_namespace": f"local://{name}"})
    key = client.new_key("admin", repositories=["other", "fourth"])
    assert [row["id"] for row in key.ask("GET", "/repositories").json["results"]] == ["other"]
    assert key.ask("GET", "/repositories/other").status == 200
    for name in ("analytics", "missing"):
        assert key.ask("GET", f"/repositories/{name}").status == 403
    creation = {"name": "fifth", "storage_namespace": "local://fifth"}
    assert key.ask("POST", "/repositories", creation).status == 403
    assert key.ask("POST", "/repositories", {**creation, "name": "fourth"}).status == 201
    assert key.ask("GET", "/auth/keys").status == 403
    assert key.ask("DELETE", "/repositories/fourth").status == 204


def test_a_revoked_key_ends_at_once_with_its_tokens(client: Any) -> None:
    """After a revocation neither the key nor a token of it is of use, however lately they were."""
    writer = client.new_key("write")
    access_key = writer.ask("GET", "/user").json["user"]["id"]
    secret = _secret_of(writer)
    login = {"access_key_id": access_key, "secret_access_key": secret}
    token = client.ask("POST", "/auth/login", login).json["token"]
    by_token = client.with_key("x", "y")
    by_token.headers = {"Authorization": f"Bearer {token}"}
    assert by_token.ask("GET", "/user").status == 200
    assert client.ask("DELETE", f"/auth/keys/{access_key}").status == 204
    assert writer.ask("GET", "/user").status == 401
    assert by_token.ask("GET", "/user").status == 401
    assert client.ask("DELETE", f"/auth/keys/{access_key}").status == 404


def _secret_of(client: Any) -> str:
    return base64.b64decode(client.headers["authorization"].split()[1]).decode().split(":")[1]


def test_rotation_changes_the_secret_and_nothing_else(client: Any) -> None:
    """After a rotation the new secret is good and the old one is not; role and repositories stay."""
    reader = client.new_key("read", repositories=["analytics"], description="for a dashboard")
    access_key = reader.ask("GET", "/user").json["user"]["id"]
    before = client.ask("GET", f"/auth/keys/{access_key}").json
    made = client.ask("POST", f"/auth/keys/{access_key}/rotate").json
    assert reader.ask("GET", "/user").status == 401
    assert client.with_key(access_key, made["secret_access_key"]).ask("GET", ":").status == 200
    assert client.ask("GET", f"/auth/keys/{access_key}").json == before
    assert before["description"] == "for a dashboard"
    assert "secret" not in json.dumps(before)


def test_the_last_admin_cannot_be_revoked(client: Any) -> None:
    """A server is never left without a key that may everything."""
    (only,) = (row["access_key_id"] for row in client.ask("GET", "/auth/keys").json["results"])
    assert "last" in client.ask("DELETE", f"/auth/keys/{only}").message
    client.new_key("admin")
    assert client.ask("DELETE", f"/auth/keys/{only}").status == 204


@pytest.mark.parametrize(
    "body",
    [
        {"role": "emperor"},
        {"role": "read", "repositories": ["../x"]},
        {"role": "read", "repositories": "analytics"},
        {},
    ],
)
def test_a_key_that_cannot_be_is_refused(client: Any, body: dict[str, Any]) -> None:
    """A wrong role or repository makes no key."""
    assert client.ask("POST", "/auth/keys", body).status == 400
    assert len(client.ask("GET", "/auth/keys").json["results"]) == 1


def test_every_change_is_in_the_audit_log(client: Any) -> None:
    """Changes leave a line: who, what, where, under which request; reads and refused changes leave none."""
    writer = client.new_key("write")
    who = writer.ask("GET", "/user").json["user"]["id"]
    before = len(client.ask("GET", "/auth/audit").json["results"])
    writer.put("a")
    made = writer.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    writer.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    writer.commit()
    writer.ask("GET", ":/branches")
    rows = client.ask("GET", "/auth/audit").json["results"]
    assert [(row["action"], row["repository"], row["subject"]) for row in rows[:2]] == [
        ("commit", "analytics", "main"),
        ("createBranch", "analytics", "dev"),
    ]
    assert len(rows) == before + 2
    assert {row["access_key_id"] for row in rows[:2]} == {who}
    assert rows[1]["request_id"] == made.headers["X-Request-Id"]
    page = client.ask("GET", "/auth/audit", amount=1).json
    following = client.ask("GET", "/auth/audit", amount=1, after=page["pagination"]["next_offset"]).json
    assert [*page["results"], *following["results"]] == rows[:2]


def test_lines_of_one_millisecond_are_in_order() -> None:
    """The newest line is the first also where many are of one moment."""
    environment = Environment(clock=ManualClock())
    log = AuditLog(MemoryKeyValue(), environment=environment, lines_max=100)
    for number in range(20):
        line = AuditLine(at_ms=0, access_key="key", action="commit", subject=str(number))
        (log.append if number % 3 else log.defer)(line)
    lines = [line.subject for _, line in log.read(amount=100)]
    assert lines == [str(number) for number in reversed(range(20))]


def test_the_audit_log_is_bounded(serve: Callable[..., Any], connect: Callable[[Any], Any]) -> None:
    """The oldest lines go when there are too many: here they are looked at when a server starts anew."""
    first = serve(audit_lines_max=3)
    client = connect(first)
    keys = [client.ask("POST", "/auth/keys", {"role": "read"}).json["access_key_id"] for _ in range(6)]
    first.stop()
    second = serve(audit_lines_max=3)
    client = client.with_key(first.started.access_key, first.started.secret)
    client.endpoint = second.started.endpoint
    client.ask("DELETE", f"/auth/keys/{keys[0]}")
    assert [row["subject"] for row in client.ask("GET", "/auth/audit").json["results"]] == [keys[0], *keys[:3:-1]]


def test_lines_that_wait_for_others(serve: Callable[..., Any], connect: Callable[[Any], Any]) -> None:
    """Lines that no reply waits for keep their order, are shown at once, and are written when a server stops."""
    first = serve()
    client, log = connect(first), first.site.audit_log
    assert [log.defer(AuditLine(number, "key", f"late{number}")) for number in range(2)] == [True, False]
    client.ask("POST", "/auth/keys", {"role": "read"})
    shown = [row["action"] for row in client.ask("GET", "/auth/audit").json["results"]]
    assert shown[0] == "createAccessKey"
    assert set(shown[1:3]) == {"late0", "late1"}
    assert log.defer(AuditLine(3, "key", "late3"))
    first.stop()
    second = serve()
    client = client.with_key(first.started.access_key, first.started.secret)
    client.endpoint = second.started.endpoint
    assert client.ask("GET", "/auth/audit").json["results"][0]["action"] == "late3"


def test_logs_hold_no_secret(serve: Callable[..., Any], connect: Callable[[Any], Any], tmp_path: Path) -> None:
    """The access log has one line of JSON a request, with who and what, and no secret, token or signature."""
    log = tmp_path / "access.log"
    running = serve(access_log=log)
    client = connect(running)
    client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://analytics"})
    login = {"access_key_id": running.started.access_key, "secret_access_key": running.started.secret}
    token = client.ask("POST", "/auth/login", login).json["token"]
    url = client.ask("GET", ":/branches/main/staging/backing", path="dir/a b", presign="true").json["presigned_url"]
    client.pool.request("PUT", url, body=b"x")
    client.headers = {"Authorization": f"Bearer {token}"}
    refused = client.ask("GET", "/nothing")
    running.stop()
    text = log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["status"] for line in lines] == [201, 200, 200, 200, 404]
    assert lines[2]["object"] == "dir/a b"
    assert lines[0]["access_key"] == running.started.access_key
    assert refused.status == 404
    for secret in (running.started.secret, token.split(".")[1], url.split("signature=")[1]):
        assert secret not in text


@pytest.mark.parametrize("shares", [True, False])
def test_servers_with_one_key_file_take_the_addresses_of_each_other(
    serve: Callable[..., Any], connect: Callable[[Any], Any], tmp_path: Path, shares: bool
) -> None:
    """What one server has signed, another one takes; with another file, or without the access key, it does not."""
    first = serve(s3_key_file=tmp_path / "one.key")
    client = connect(first)
    client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://analytics"})
    client.ask("POST", "/auth/keys", {"role": "admin"})  # so that the first one may be revoked
    place = client.ask("GET", ":/branches/main/staging/backing", path="a", presign="true").json
    late = client.ask("GET", ":/branches/main/staging/backing", path="b", presign="true").json
    parts = client.ask("POST", ":/branches/main/staging/pmpu", path="c", parts=1).json
    first.stop()
    second = serve(s3_key_file=tmp_path / ("one.key" if shares else "two.key"))
    client.endpoint = second.started.endpoint

    def put(url: str) -> int:
        return int(client.pool.request("PUT", url.replace(first.started.endpoint, client.endpoint), body=b"1").status)

    expected = 200 if shares else 403
    assert [put(place["presigned_url"]), put(parts["presigned_urls"][0])] == [expected, expected]
    assert client.ask("DELETE", f"/auth/keys/{first.started.access_key}").status == 204
    assert put(late["presigned_url"]) == 403
