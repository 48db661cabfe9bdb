"""Who may do what: Basic, Bearer, wrong secrets, roles, rotation."""

import json

import lakefs
import lakefs_sdk
from flows.expect import refused
from lakefs.exceptions import ForbiddenException, NotAuthorizedException


def _key(lake, role, **more):
    status, _, body = lake.ask("POST", "/api/v1/auth/keys", {"role": role, **more})
    assert status == 201, body
    made = json.loads(body)
    return lake.with_key(made["access_key_id"], made["secret_access_key"]), made


def _branch(repository, client, name="main"):
    return lakefs.Repository(repository.id, client=client).branch(name)


def a_wrong_secret_is_refused(lake):
    """401 for a wrong secret, an unknown key, and no key at all; a sentence, and no details."""
    made = lake.repository()
    for key, secret in ((lake.access_key, "wrong"), ("UNKNOWNKEY", lake.secret), ("", "")):
        client = lake.with_key(key or "x", secret or "x")
        with refused(401, kind=NotAuthorizedException):
            _ = lakefs.Repository(made.id, client=client).properties
        with refused(401):
            _branch(made, client).object("a").upload(b"1", pre_sign=False)
    reply = lake.http.request("GET", f"{lake.endpoint}/api/v1/repositories/{made.id}")
    assert reply.status == 401
    assert json.loads(reply.data)["message"]
    assert "Basic" in reply.headers["WWW-Authenticate"]


def a_token_is_as_good_as_a_secret(lake):
    """A login gives a token; the SDK sends it as Bearer, to every call and to uploads."""
    made = lake.repository()
    token = lake.client.sdk_client.auth_api.login(
        lakefs_sdk.LoginInformation(access_key_id=lake.access_key, secret_access_key=lake.secret)
    )
    client = lake.distributed(lakefs.Client(host=lake.endpoint, access_token=token.token))
    main = _branch(made, client)
    main.object("a").upload(b"1")
    main.object("b").upload(b"2", pre_sign=True)
    assert main.commit("by a token").get_commit().committer == lake.access_key
    assert [entry.path for entry in main.objects()] == ["a", "b"]
    assert main.object("b").reader().read() == b"2"
    wrong = lakefs.Client(host=lake.endpoint, access_token=token.token[:-2] + "xx")
    with refused(401, kind=NotAuthorizedException):
        list(_branch(made, wrong).objects())
    with refused(401):
        lake.client.sdk_client.auth_api.login(
            lakefs_sdk.LoginInformation(access_key_id=lake.access_key, secret_access_key="wrong")
        )


def who_may_read_cannot_write(lake):
    """Every change is 403 to the role read, and every read is answered."""
    made = lake.repository()
    mine = made.branch("main")
    mine.object("a").upload(b"1")
    mine.commit("first")
    client, _ = _key(lake, "read")
    main = _branch(made, client)
    assert main.object("a").reader().read() == b"1"
    assert [entry.path for entry in main.objects()] == ["a"]
    assert len(list(main.log())) == 2
    repository = lakefs.Repository(made.id, client=client)
    for change in (
        lambda: main.object("b").upload(b"1", pre_sign=False),
        lambda: main.object("b").upload(b"1", pre_sign=True),
        lambda: main.object("a").delete(),
        lambda: main.delete_objects(["a"]),
        lambda: main.object("a").copy("main", "b"),
        lambda: main.commit("x", allow_empty=True),
        lambda: main.reset_changes(),
        lambda: main.revert("main"),
        lambda: repository.branch("dev").create("main"),
        lambda: repository.tag("v1").create("main"),
        lambda: repository.delete(),
        lambda: (
            lake.with_key(client.config.username, client.config.password)
            and lakefs.Repository(lake.name(), client=client).create(f"local://{lake.name()}")
        ),
    ):
        with refused(403):
            change()
    assert [branch.id for branch in made.branches()] == ["main"]
    assert [entry.path for entry in mine.objects()] == ["a"]


def who_may_write_cannot_administrate(lake):
    """Objects, branches and commits, yes; access keys and the end of a repository, no."""
    made = lake.repository()
    client, key = _key(lake, "write")
    main = _branch(made, client)
    main.object("a").upload(b"1")
    assert main.commit("by another").get_commit().committer == key["access_key_id"]
    with refused(403, kind=ForbiddenException):
        lakefs.Repository(made.id, client=client).delete()
    status, _, _ = lake.ask("POST", "/api/v1/auth/keys", {"role": "admin"}, client=client)
    assert status == 403


def a_key_may_be_for_some_repositories(lake):
    """What it may not see is 403, and is not listed."""
    mine, others = lake.repository(), lake.repository()
    client, _ = _key(lake, "write", repositories=[mine.id])
    _branch(mine, client).object("a").upload(b"1")
    with refused(403, others.id):
        _branch(others, client).object("a").upload(b"1", pre_sign=False)
    assert [repository.id for repository in lakefs.repositories(client)] == [mine.id]


def a_revoked_key_ends(lake):
    """At once at the server that revoked it; with a new secret the old one ends."""
    made = lake.repository()
    client, key = _key(lake, "read")
    assert list(_branch(made, client).objects()) == []
    status, _, body = lake.ask("POST", f"/api/v1/auth/keys/{key['access_key_id']}/rotate")
    assert status == 201
    renewed = lake.with_key(key["access_key_id"], json.loads(body)["secret_access_key"])
    assert list(_branch(made, renewed).objects()) == []
    lake.until(lambda: _refused(made, client))
    assert lake.ask("DELETE", f"/api/v1/auth/keys/{key['access_key_id']}")[0] == 204
    lake.until(lambda: _refused(made, renewed))


def _refused(made, client):
    try:
        list(_branch(made, client).objects())
    except NotAuthorizedException:
        return True
    return False


def changes_are_audited(lake):
    """Administrators see who changed what, newest first."""
    made = lake.repository()
    made.branch("dev").create("main")
    made.branch("dev").delete()
    status, _, body = lake.ask("GET", "/api/v1/auth/audit?amount=50")
    assert status == 200
    lines = [line for line in json.loads(body)["results"] if line["repository"] == made.id]
    assert [(line["action"], line["subject"]) for line in lines] == [("deleteBranch", "dev"), ("createBranch", "dev")]
    assert {line["access_key_id"] for line in lines} == {lake.access_key}
