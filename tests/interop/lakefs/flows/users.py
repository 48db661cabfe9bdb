"""Users, groups, policies and credentials, with the SDK."""

import uuid

import lakefs
import lakefs_sdk
from flows.expect import refused
from lakefs.exceptions import PermissionException

GROUPS = ["Admins", "Developers", "SuperUsers", "Viewers"]


def _name(kind):
    return f"{kind}-{uuid.uuid4().hex[:8]}"


def _user(lake, *, groups=()):
    """A new user, and a client with a key of that user."""
    auth, name = lake.client.sdk_client.auth_api, _name("user")
    assert auth.create_user(user_creation=lakefs_sdk.UserCreation(id=name)).id == name
    for group in groups:
        auth.add_group_membership(group, name)
    made = auth.create_credentials(name)
    return name, lake.with_key(made.access_key_id, made.secret_access_key)


def _ids(page):
    return [row.id for row in page.results]


def users_and_groups_are_made_and_end(lake):
    """Users, groups and memberships, as the SDK has them."""
    auth, group = lake.client.sdk_client.auth_api, _name("group")
    name, client = _user(lake)
    assert client.sdk_client.auth_api.get_current_user().user.id == name
    assert name in _ids(auth.list_users(amount=1000))
    assert auth.get_user(name).id == name
    with refused(409):
        auth.create_user(user_creation=lakefs_sdk.UserCreation(id=name))
    auth.create_group(group_creation=lakefs_sdk.GroupCreation(id=group, description="of the test"))
    assert auth.get_group(group).id == group
    assert set(GROUPS) | {group} <= set(_ids(auth.list_groups(amount=1000)))
    auth.add_group_membership(group, name)
    assert _ids(auth.list_group_members(group)) == [name]
    assert _ids(auth.list_user_groups(name)) == [group]
    auth.delete_group_membership(group, name)
    assert _ids(auth.list_group_members(group)) == []
    auth.delete_group(group)
    with refused(404):
        auth.get_group(group)
    (row,) = auth.list_user_credentials(name).results
    assert auth.get_credentials(name, row.access_key_id).access_key_id == row.access_key_id
    auth.delete_credentials(name, row.access_key_id)
    lake.until(lambda: _is_refused(client))
    auth.delete_user(name)
    with refused(404):
        auth.get_user(name)


def _is_refused(client):
    try:
        client.sdk_client.auth_api.get_current_user()
    except lakefs_sdk.ApiException as error:
        return error.status == 401
    return False


def a_policy_limits_a_user(lake):
    """A user writes below one folder, reads below two, and nothing else; what is attached later counts."""
    made, auth = lake.repository(), lake.client.sdk_client.auth_api
    main = made.branch("main")
    for path in ("in/1", "public/1", "private/1"):
        main.object(path).upload(b"content")
    main.commit("first")
    name, client = _user(lake)
    mine = lakefs.Repository(made.id, client=client).branch("main")
    with refused(401, kind=PermissionException):
        mine.object("in/1").reader().read()
    arn, policy = f"arn:lakefs:fs:::repository/{made.id}", _name("policy")
    statements = [
        ("allow", ["fs:ReadObject", "fs:WriteObject"], f"{arn}/object/in/*"),
        ("allow", ["fs:ReadObject"], f"{arn}/object/public/*"),
        ("allow", ["fs:ListObjects", "fs:ReadRepository", "fs:ReadCommit"], arn),
        ("allow", ["fs:CreateCommit", "fs:ReadBranch"], f"{arn}/branch/main"),
        ("allow", ["fs:ReadConfig"], "*"),
    ]
    body = lakefs_sdk.Policy(
        id=policy,
        statement=[lakefs_sdk.Statement(effect=effect, action=action, resource=resource)
                   for effect, action, resource in statements],
    )  # fmt: skip
    assert auth.create_policy(policy=body).id == policy
    assert [row.action for row in auth.get_policy(policy).statement] == [action for _, action, _ in statements]
    assert policy in _ids(auth.list_policies(amount=1000))
    auth.attach_policy_to_user(name, policy)
    assert _ids(auth.list_user_policies(name)) == [policy]
    lake.until(lambda: _reads(mine, "in/1"))
    assert _reads(mine, "public/1")
    assert not _reads(mine, "private/1")
    mine.object("in/2").upload(b"2", pre_sign=False)
    mine.object("in/3").upload(b"3", pre_sign=True)
    assert {entry.path for entry in mine.objects(prefix="in/")} == {"in/1", "in/2", "in/3"}
    assert mine.commit("mine").get_commit().committer == name
    for path in ("public/2", "private/2", "in"):
        for presign in (False, True):
            with refused(401):
                mine.object(path).upload(b"2", pre_sign=presign)
    for change in (
        lambda: mine.object("in/2").delete(),
        lambda: mine.object("private/1").copy("main", "in/4"),
        lambda: lakefs.Repository(made.id, client=client).branch("dev").create("main"),
        lambda: lakefs.Repository(made.id, client=client).delete(),
        lambda: client.sdk_client.auth_api.list_users(),
        lambda: client.sdk_client.auth_api.attach_policy_to_user(name, "FSFullAccess"),
    ):
        with refused(401):
            change()
    auth.delete_policy(policy)
    lake.until(lambda: not _reads(mine, "in/1"))


def _reads(branch, path):
    try:
        return branch.object(path).reader().read() == b"content"
    except PermissionException:
        return False


def groups_of_the_beginning_are_roles(lake):
    """Viewers read, Developers write, Admins administrate: with the SDK, as with lakeFS."""
    made = lake.repository()
    main = made.branch("main")
    main.object("a").upload(b"content")
    main.commit("first")
    _, viewer = _user(lake, groups=["Viewers"])
    _, developer = _user(lake, groups=["Developers"])
    name, admin = _user(lake, groups=["Admins"])
    branches = {
        client: lakefs.Repository(made.id, client=client).branch("main") for client in (viewer, developer, admin)
    }
    assert all(_reads(branch, "a") for branch in branches.values())
    with refused(401):
        branches[viewer].object("b").upload(b"1", pre_sign=False)
    branches[developer].object("b").upload(b"1")
    branches[developer].commit("by a developer")
    for client in (viewer, developer):
        with refused(401):
            lakefs.Repository(made.id, client=client).delete()
        with refused(401):
            lakefs.Repository(lake.name(), client=client).create(f"local://{lake.name()}")
        with refused(401):
            client.sdk_client.auth_api.list_users()
    assert name in _ids(admin.sdk_client.auth_api.list_users(amount=1000))
    lakefs.Repository(made.id, client=admin).delete()


def what_cannot_be_enforced_is_refused(lake):
    """A policy with an unknown action or a condition is not made."""
    auth = lake.client.sdk_client.auth_api
    for statement in (
        lakefs_sdk.Statement(effect="allow", action=["fs:Fly"], resource="*"),
        lakefs_sdk.Statement(effect="allow", action=["fs:*"], resource="repository/x"),
    ):
        name = _name("policy")
        with refused(400):
            auth.create_policy(policy=lakefs_sdk.Policy(id=name, statement=[statement]))
        with refused(404):
            auth.get_policy(name)
