"""Users, groups and policies over HTTP: what they are, and that policies are enforced for every operation."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lakebed.http.declaration import Endpoint
from lakebed.server.needs import REST
from lakebed.server.routes import ROUTES

REPOSITORY = "arn:lakefs:fs:::repository/analytics"

FREE = {"getCurrentUser", "getConfig", "getLakeFSVersion", "getGarbageCollectionConfig", "postStatsEvents",
        "listRepositories"}  # fmt: skip
"""What every user may ask for; a list of repositories has only those that the user may see."""

BODIES: dict[str, Any] = {
    "createBranch": {"name": "dev", "source": "main"},
    "createTag": {"id": "t", "ref": "main"},
    "createRepository": {"name": "fresh", "storage_namespace": "local://fresh"},
    "deleteObjects": {"paths": ["a"]},
    "importStart": {
        "paths": [{"type": "common_prefix", "path": "local:///x/", "destination": "a/"}],
        "commit": {"message": "m"},
    },
    "createUser": {"id": "bob"},
    "setGroupACL": {"permission": "Read"},
    "createGroup": {"id": "staff"},
    "createPolicy": {"id": "p", "statement": [{"effect": "allow", "action": ["fs:*"], "resource": "*"}]},
}
"""Of operations whose body decides: one that is well-formed."""


def new_user(client: Any, name: str, *statements: Any) -> Any:
    """A client with a key of a new user, who has one policy of the statements, if there are any."""
    assert client.ask("POST", "/auth/users", {"id": name}).status == 201
    if statements:
        set_policy(client, name, *statements)
        assert client.ask("PUT", f"/auth/users/{name}/policies/of-{name}").status == 201
    made = client.ask("POST", f"/auth/users/{name}/credentials")
    assert made.status == 201
    return client.with_key(made.json["access_key_id"], made.json["secret_access_key"])


def set_policy(client: Any, name: str, *statements: Any) -> None:
    """Make or replace the policy of a user."""
    body = {
        "id": f"of-{name}",
        "statement": [
            {"effect": effect, "action": actions.split(), "resource": resource}
            for effect, actions, resource in statements
        ],
    }
    if client.ask("POST", "/auth/policies", body).status != 201:
        assert client.ask("PUT", f"/auth/policies/of-{name}", body).status == 200


def rows(client: Any, place: str, **query: Any) -> list[str]:
    """The ids of a list."""
    answer = client.ask("GET", place, **query)
    assert answer.status == 200, answer.body
    return [row.get("id") or row["access_key_id"] for row in answer.json["results"]]


def test_users_groups_and_policies_live(client: Any) -> None:
    """They are made, listed in pages, attached, detached and deleted; a deleted group or policy is nowhere any more."""
    for name in ("ann", "bob", "cat"):
        assert client.ask("POST", "/auth/users", {"id": name}).json["id"] == name
    assert client.ask("POST", "/auth/users", {"id": "ann"}).status == 409
    assert rows(client, "/auth/users") == ["ann", "bob", "cat"]
    page = client.ask("GET", "/auth/users", amount=2).json
    assert [row["id"] for row in page["results"]] == ["ann", "bob"]
    assert rows(client, "/auth/users", after=page["pagination"]["next_offset"]) == ["cat"]
    assert client.ask("POST", "/auth/groups", {"id": "staff", "description": "us"}).json["description"] == "us"
    for name in ("ann", "bob"):
        assert client.ask("PUT", f"/auth/groups/staff/members/{name}").status == 201
    assert rows(client, "/auth/groups/staff/members") == ["ann", "bob"]
    assert rows(client, "/auth/users/ann/groups") == ["staff"]
    set_policy(client, "ann", ("allow", "fs:ReadObject", "*"))
    assert client.ask("PUT", "/auth/groups/staff/policies/of-ann").status == 201
    assert client.ask("PUT", "/auth/groups/staff/policies/of-ann").status == 409
    assert client.ask("PUT", "/auth/users/ann/policies/FSReadAll").status == 201
    assert rows(client, "/auth/users/ann/policies") == ["FSReadAll"]
    assert rows(client, "/auth/users/ann/policies", effective="true") == ["FSReadAll", "of-ann"]
    assert client.ask("GET", "/auth/policies/of-ann").json["statement"] == [
        {"effect": "allow", "resource": "*", "action": ["fs:ReadObject"]}
    ]
    assert client.ask("DELETE", "/auth/groups/staff/members/bob").status == 204
    assert client.ask("DELETE", "/auth/groups/staff/members/bob").status == 404
    assert client.ask("DELETE", "/auth/policies/of-ann").status == 204
    assert rows(client, "/auth/groups/staff/policies") == []
    assert client.ask("DELETE", "/auth/groups/staff").status == 204
    assert rows(client, "/auth/users/ann/groups") == []
    assert client.ask("DELETE", "/auth/users/ann/policies/FSReadAll").status == 204
    assert rows(client, "/auth/users/ann/policies", effective="true") == []
    assert client.ask("DELETE", "/auth/users/cat").status == 204
    for place in ("/auth/users/cat", "/auth/groups/staff", "/auth/policies/of-ann", "/auth/users/cat/credentials"):
        assert client.ask("GET", place).status == 404
    assert set(rows(client, "/auth/groups")) == {"Admins", "SuperUsers", "Developers", "Viewers"}


def test_a_user_has_keys_and_commits_by_name(client: Any) -> None:
    """Keys are made, listed and deleted; the user is who commits; the audit log has the key."""
    ann = new_user(client, "ann", ("allow", "fs:*", "*"))
    (key,) = rows(client, "/auth/users/ann/credentials")
    assert ann.ask("GET", "/user").json["user"]["id"] == "ann"
    ann.put("a")
    assert ann.commit()["committer"] == "ann"
    assert client.ask("GET", "/auth/audit").json["results"][0]["access_key_id"] == key
    second = client.ask("POST", "/auth/users/ann/credentials").json
    assert client.ask("GET", f"/auth/users/ann/credentials/{second['access_key_id']}").status == 200
    assert client.ask("DELETE", f"/auth/users/ann/credentials/{key}").status == 204
    assert ann.ask("GET", "/user").status == 401
    again = client.with_key(second["access_key_id"], second["secret_access_key"])
    assert again.ask("GET", "/user").status == 200
    assert client.ask("DELETE", "/auth/users/ann").status == 204
    assert again.ask("GET", "/user").status == 401
    assert rows(client, "/auth/keys") == [client.ask("GET", "/user").json["user"]["id"]]


def place_of(endpoint: Endpoint) -> tuple[str, dict[str, str]]:
    """A path and query that name things."""
    names = {
        "repository": "analytics",
        "branch": "main",
        "ref": "main",
        "left": "main",
        "right": "main",
        "type": "range",
    }
    path = re.sub(r"\{(\w+)(?::\w+)?\}", lambda match: names.get(match[1], "x"), endpoint.path)
    return path, {parameter.name: "x" for parameter in endpoint.parameters if parameter.required}


def test_a_user_without_policies_may_do_nothing(client: Any) -> None:
    """Every operation is refused, of what is served now and what will be: it has to be opened to a user on purpose."""
    nobody = new_user(client, "nobody")
    endpoints = [route.endpoint for route in ROUTES["/api/v1"] if route.endpoint.needs is not None]
    assert len(endpoints) > 100
    for endpoint in endpoints:
        path, query = place_of(endpoint)
        answer = nobody.ask(endpoint.method, path, BODIES.get(endpoint.name), **query)
        expected = {200, 204, 400} if endpoint.name in FREE else {401}
        assert answer.status in expected, (endpoint.name, answer.status, answer.body)
    assert nobody.ask("GET", "/repositories").json["results"] == []


def test_every_operation_that_is_named_is_served() -> None:
    """A name in the table that no route has would protect nothing."""
    names = {route.endpoint.name for routes in ROUTES.values() for route in routes}
    later = {name for name in REST if "PresignMultipart" in name}
    assert set(REST) - names - later == set()


def test_one_permission_permits_one_operation(client: Any) -> None:
    """With the one action on the one resource an operation is accepted, and its neighbours stay refused."""
    client.put("a/1")
    client.commit()
    ann = new_user(client, "ann", ("allow", "fs:ReadObject", "*"))
    steps: list[tuple[str, str, str, str, Any, dict[str, str], int]] = [
        ("fs:ReadObject", "/object/a/*", "GET", ":/refs/main/objects", None, {"path": "a/1"}, 200),
        ("fs:WriteObject", "/object/a/*", "POST", ":/branches/main/objects", b"x", {"path": "a/2"}, 201),
        ("fs:DeleteObject", "/object/a/*", "DELETE", ":/branches/main/objects", None, {"path": "a/2"}, 204),
        ("fs:DeleteObject", "/object/a/*", "POST", ":/branches/main/objects/delete", {"paths": ["a/2"]}, {}, 200),
        ("fs:ListObjects", "", "GET", ":/refs/main/objects/ls", None, {}, 200),
        ("fs:CreateBranch", "/branch/dev*", "POST", ":/branches", {"name": "dev1", "source": "main"}, {}, 201),
        ("fs:ReadBranch", "/branch/dev*", "GET", ":/branches/dev1", None, {}, 200),
        ("fs:RevertBranch", "/branch/dev*", "PUT", ":/branches/dev1", {"type": "reset"}, {}, 204),
        ("fs:DeleteBranch", "/branch/dev*", "DELETE", ":/branches/dev1", None, {}, 204),
        ("fs:CreateTag", "/tag/v*", "POST", ":/tags", {"id": "v1", "ref": "main"}, {}, 201),
        ("fs:DeleteTag", "/tag/v*", "DELETE", ":/tags/v1", None, {}, 204),
        ("branches:SetBranchProtectionRules", "", "PUT", ":/settings/branch_protection", [], {}, 204),
        ("pr:ListPullRequests", "", "GET", ":/pulls", None, {}, 200),
    ]
    for action, below, method, place, body, query, status in steps:
        set_policy(client, "ann", ("allow", "fs:ReadConfig", "*"))
        refused = ann.ask(method, place, body, **query)
        assert refused.status == 401, place
        assert action in refused.message
        set_policy(client, "ann", ("allow", action, REPOSITORY + below))
        assert ann.ask(method, place, body, **query).status == status, place
        if below and method != "GET":
            set_policy(client, "ann", ("allow", action, f"{REPOSITORY}{below.replace('*', '')}-other"))
            assert ann.ask(method, place, body, **query).status == 401, place


def test_a_word_stands_for_the_policies_of_a_group(client: Any) -> None:
    """Setting it replaces them; other policies have no word; a user who may not read the group does not learn it."""
    assert client.ask("POST", "/auth/groups", {"id": "staff"}).status == 201
    assert client.ask("GET", "/auth/groups/staff/acl").status == 404
    for word, group in {"Write": "Developers", "Admin": "Admins", "Super": "SuperUsers", "Read": "Viewers"}.items():
        assert client.ask("GET", f"/auth/groups/{group}/acl").json == {"permission": word}
        assert client.ask("POST", "/auth/groups/staff/acl", {"permission": word}).status == 201
        assert client.ask("GET", "/auth/groups/staff/acl").json == {"permission": word}
        assert rows(client, "/auth/groups/staff/policies") == rows(client, f"/auth/groups/{group}/policies")
    assert client.ask("POST", "/auth/groups/staff/acl", {"permission": "Everything"}).status == 400
    assert client.ask("POST", "/auth/groups/nowhere/acl", {"permission": "Read"}).status == 404
    ann = new_user(client, "ann", ("allow", "auth:ReadUser auth:AttachPolicy", "*"))
    assert ann.ask("GET", "/auth/groups/staff/acl").status == 401
    assert ann.ask("POST", "/auth/groups/staff/acl", {"permission": "Admin"}).status == 401


def test_a_denial_wins(client: Any) -> None:
    """A user of a group that may everything cannot read what one policy denies, in any way."""
    client.put("open/1", b"open")
    client.put("secret/1", b"secret")
    client.commit()
    address = client.ask("GET", ":/refs/main/objects/stat", path="secret/1").json["physical_address"]
    ann = new_user(client, "ann", ("deny", "fs:ReadObject", REPOSITORY + "/object/secret/*"))
    assert client.ask("PUT", "/auth/groups/Admins/members/ann").status == 201
    assert ann.get("open/1").body == b"open"
    listed = {row["path"]: row["physical_address"] for row in ann.ask("GET", ":/refs/main/objects/ls").json["results"]}
    assert listed["open/1"]
    assert listed["secret/1"] == ""
    copy = {"src_path": "secret/1", "src_ref": "main"}
    attempts: list[tuple[str, str, Any, dict[str, str]]] = [
        ("GET", ":/refs/main/objects", None, {"path": "secret/1"}),
        ("GET", ":/refs/main/objects/stat", None, {"path": "secret/1"}),
        ("POST", ":/branches/main/objects/copy", copy, {"dest_path": "open/2"}),
        ("GET", ":/verbs/read", None, {"ref": "main", "path": "secret/1"}),
        ("POST", ":/verbs/stat", {"ref": "main", "path": "secret/1"}, {}),
        ("POST", ":/verbs/copy", {"branch": "main", "source": "secret/1", "path": "open/2"}, {}),
        ("POST", ":/verbs/link", {"branch": "main", "path": "open/2", "url": address}, {}),
        ("GET", ":/metadata/object/meta_range/x", None, {}),
    ]
    for method, place, body, query in attempts:
        assert ann.ask(method, place, body, **query).status == 401, place
    assert ann.ask("GET", "/repositories").json["results"][0]["id"] == "analytics"
    assert client.ask("PUT", "/auth/policies/of-ann", {"id": "of-ann", "statement": [
        {"effect": "deny", "action": ["fs:WriteObject"], "resource": "*"}]}).status == 200  # fmt: skip
    assert ann.get("secret/1").body == b"secret"


def test_a_rule_of_a_branch_holds_for_every_spelling_of_it(client: Any) -> None:
    """Who may not read one branch gets its log by no steps and no mode behind its name."""
    client.commit(allow_empty=True)
    client.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    branches = REPOSITORY + "/branch/"
    ann = new_user(client, "ann", ("allow", "fs:*", "*"), ("deny", "fs:ReadBranch", branches + "main"))
    bob = new_user(client, "bob", ("allow", "fs:ReadBranch", branches + "dev*"))
    for steps in ("", "~0", "^0", "~", "^1~0", "@", "~0@"):
        assert ann.ask("GET", f":/refs/main{steps}/commits").status == 401, steps
        assert bob.ask("GET", f":/refs/main{steps}/commits").status == 401, steps
        assert ann.ask("GET", f":/refs/dev{steps}/commits").status == 200, steps
        assert bob.ask("GET", f":/refs/dev{steps}/commits").status == 200, steps
    assert ann.ask("GET", ":/refs/main~~x/commits").status == 400


def test_a_signed_address_is_for_its_path(client: Any) -> None:
    """A user gets one for a path that may be written, and cannot use it once that has ended."""
    ann = new_user(client, "ann", ("allow", "fs:WriteObject", REPOSITORY + "/object/a/*"))
    place = ":/branches/main/staging/backing"
    assert ann.ask("GET", place, path="b/1", presign="true").status == 401
    for status in (200, 401):
        location = ann.ask("GET", place, path="a/1", presign="true").json
        url = location["presigned_url"]
        if status == 401:
            set_policy(client, "ann", ("allow", "fs:WriteObject", REPOSITORY + "/object/c/*"))
        assert ann.pool.request("PUT", url, body=b"x").status == status
        assert ann.pool.request("PUT", url.replace("path=a%2F1", "path=c%2F1"), body=b"x").status in (400, 401, 403)


def test_what_limits_imports_holds_for_users(client: Any, tmp_path: Any) -> None:
    """A link or stage of a place outside needs the permission to import."""
    ann = new_user(client, "ann", ("allow", "fs:WriteObject", "*"))
    outside = f"file://{tmp_path}/x"
    staged = {"physical_address": outside, "checksum": "x", "size_bytes": 1}
    assert ann.ask("PUT", ":/branches/main/objects", staged, path="a").status == 401
    linked = {"staging": {"physical_address": outside}, "checksum": "x", "size_bytes": 1}
    assert ann.ask("PUT", ":/branches/main/staging/backing", linked, path="a").status == 401


def test_no_spelling_of_a_place_reaches_more(serve: Any, connect: Any, tmp_path: Any) -> None:
    """What a statement allows or denies is a place: dots, slashes and other schemes lead around none."""
    outside = tmp_path / "outside"
    for name in ("ours", "theirs"):
        (outside / name).mkdir(parents=True)
        (outside / name / "x").write_bytes(b"x")
    client = connect(serve(import_from=[f"analytics=file://{outside}"]))
    made = {"name": "analytics", "storage_namespace": "local://analytics"}
    assert client.ask("POST", "/repositories", made).status == 201
    place = f"arn:lakefs:fs:::namespace/file://{outside}"
    ann = new_user(
        client, "ann",
        ("allow", "fs:WriteObject fs:CreateCommit", "arn:lakefs:fs:::repository/analytics/*"),
        ("allow", "fs:CreateRepository", "*"),
        ("allow", "fs:ImportFromStorage", f"{place}/ours/*"),
        ("allow", "fs:AttachStorageNamespace", f"arn:lakefs:fs:::namespace/file://{tmp_path}/lake/ours/*"),
    )  # fmt: skip
    bob = new_user(
        client, "bob",
        ("allow", "fs:*", "*"),
        ("deny", "fs:ImportFromStorage", f"{place}/theirs/*"),
        ("deny", "fs:AttachStorageNamespace", "arn:lakefs:fs:::namespace/local://theirs/*"),
    )  # fmt: skip
    real, root = f"{outside}/theirs/x", f"{tmp_path}/lake"
    around = [f"{outside}{way}theirs/x" for way in ("/ours/../", "/ours/..//", "//", "/./")]
    spellings = (*around, real, f"//{real}")
    for user in (ann, bob):
        for address in [f"{scheme}{path}" for path in spellings for scheme in ("file://", "local://", "file:")]:
            body = {"physical_address": address, "checksum": "", "size_bytes": 1}
            answer = user.ask("PUT", "/repositories/analytics/branches/main/objects", body, path="b")
            assert answer.status == 401, (address, answer.body)
            link = {"staging": {"physical_address": address}, "checksum": "", "size_bytes": 1}
            answer = user.ask("PUT", "/repositories/analytics/branches/main/staging/backing", link, path="b")
            assert answer.status in (400, 401), (address, answer.body)
            location = {"type": "object", "path": address, "destination": "c"}
            body = {"paths": [location], "commit": {"message": "m"}}
            answer = user.ask("POST", "/repositories/analytics/branches/main/import", body)
            assert answer.status == 401, (address, answer.body)
        for namespace in (f"file://{root}/ours/../theirs/r", f"file://{root}/theirs/r", f"file:{root}/theirs/r",
                          f"file://{root}//theirs/r", "theirs/r", "/theirs/r", f"{root}/theirs/r"):  # fmt: skip
            body = {"name": "fresh", "storage_namespace": namespace}
            answer = user.ask("POST", "/repositories", body)
            assert answer.status in (400, 401), (namespace, answer.body)
    body = {"physical_address": f"file://{outside}/ours/x", "checksum": "", "size_bytes": 1}
    for user in (ann, bob):
        assert user.ask("PUT", "/repositories/analytics/branches/main/objects", body, path="b").status == 201
    body = {"physical_address": f"local://{outside}/ours/../ours/x", "checksum": "", "size_bytes": 1}
    assert ann.ask("PUT", "/repositories/analytics/branches/main/objects", body, path="b").status == 201


@pytest.mark.parametrize(
    ("place", "body"),
    [
        ("/auth/users", {"id": "LAKEBED0AAAA"}),
        ("/auth/users", {"id": "a*"}),
        ("/auth/users", {"id": ""}),
        ("/auth/users", {"id": "ann", "invite_user": True}),
        ("/auth/groups", {"id": "a/b"}),
        ("/auth/policies", {"id": "p", "statement": []}),
        ("/auth/policies", {"id": "p", "statement": [{"effect": "allow", "action": ["fs:Fly"], "resource": "*"}]}),
        ("/auth/policies", {"id": "p", "statement": [
            {"effect": "allow", "action": ["fs:*"], "resource": "*", "condition": {"IpAddress": {"SourceIp": ["::1"]}}}
        ]}),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(client: Any, place: str, body: dict[str, Any]) -> None:
    """A name with a wildcard, one like an access key, a policy that could not be enforced: 400, and nothing is made."""
    before = rows(client, place)
    assert client.ask("POST", place, body).status == 400
    assert rows(client, place) == before


def test_users_manage_their_own_keys(client: Any) -> None:
    """With the policy for it a user makes and deletes own keys, and no others."""
    ann = new_user(client, "ann")
    new_user(client, "bob")
    assert client.ask("PUT", "/auth/users/ann/policies/AuthManageOwnCredentials").status == 201
    made = ann.ask("POST", "/auth/users/ann/credentials")
    assert made.status == 201
    assert ann.ask("DELETE", f"/auth/users/ann/credentials/{made.json['access_key_id']}").status == 204
    assert ann.ask("POST", "/auth/users/bob/credentials").status == 401
    (of_bob,) = rows(client, "/auth/users/bob/credentials")
    assert ann.ask("DELETE", f"/auth/users/ann/credentials/{of_bob}").status == 404
    assert rows(client, "/auth/users/bob/credentials") == [of_bob]


def test_roles_are_held_to_users_too(client: Any) -> None:
    """Keys with the roles read and write neither see nor change users."""
    for role in ("read", "write"):
        key = client.new_key(role)
        for method, place in (("GET", "/auth/users"), ("POST", "/auth/users"), ("GET", "/auth/policies/FSReadAll")):
            assert key.ask(method, place, {"id": "x"} if method == "POST" else None).status == 403


def test_the_tables_of_the_lake_are_for_those_who_may_everything(client: Any) -> None:
    """No policy speaks of them: the catalog refuses a developer, and answers an administrator that there is none.

    A table that a user may not see is missing when it is looked for, because Flink looks for several.
    """
    place = "/paimon/v1/lake/databases/shop/tables/orders"
    for group, status in (("Developers", 403), ("Admins", 404)):
        user = new_user(client, f"of-{group}")
        assert client.ask("PUT", f"/auth/groups/{group}/members/of-{group}").status == 201
        assert user.ask_root("GET", place).status == 404
        assert user.ask_root("GET", f"{place}/snapshot").status == status


def test_tables_on_branches_need_a_role_without_exception(client: Any) -> None:
    """Through the catalog: with a statement that denies anything of any repository there is no role in all of them."""
    place = "/paimon/v1/lake/databases/analytics.main/tables/orders"
    ann = new_user(client, "ann", ("allow", "fs:Read* fs:List*", "*"))
    assert ann.ask_root("GET", place).status == 404, "permitted: but there is no such table"
    set_policy(
        client, "ann", ("allow", "fs:Read* fs:List*", "*"), ("deny", "fs:ReadObject", REPOSITORY + "/object/secret/*")
    )
    assert ann.ask_root("GET", place).status == 403
