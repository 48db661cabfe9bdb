"""Repositories: made, found, listed, deleted; what the server says of itself."""

import json

import lakefs
import lakefs_sdk
from flows.expect import refused
from lakefs.exceptions import ConflictException, NotFoundException


def a_repository_is_made_found_and_deleted(lake):
    """What was made is there with its own properties until it is deleted."""
    name = lake.name()
    made = lakefs.Repository(name, client=lake.client).create(
        storage_namespace=f"local://{name}", default_branch="trunk"
    )
    assert (made.properties.id, made.properties.default_branch) == (name, "trunk")
    again = lakefs.Repository(name, client=lake.client)
    assert again.properties == made.properties
    assert again.properties.creation_date > 1_700_000_000
    assert [branch.id for branch in again.branches()] == ["trunk"]
    again.delete()
    with refused(404, name, kind=NotFoundException):
        _ = lakefs.Repository(name, client=lake.client).properties


def a_repository_that_exists_is_not_made_again(lake):
    """A second creation is a conflict, which ``exist_ok`` takes as what was wanted."""
    made = lake.repository()
    with refused(409, made.id, kind=ConflictException):
        lakefs.Repository(made.id, client=lake.client).create(storage_namespace=f"local://{made.id}-2")
    same = lakefs.Repository(made.id, client=lake.client).create(f"local://{made.id}-2", exist_ok=True)
    assert same.properties == made.properties


def a_namespace_belongs_to_one_repository(lake):
    """Neither the folder of another repository nor one inside or around it can be taken."""
    made = lake.repository()
    for namespace in (made.id, f"{made.id}/inside"):
        with refused(400):
            lakefs.Repository(lake.name(), client=lake.client).create(storage_namespace=f"local://{namespace}")


def names_that_cannot_be_are_refused(lake):
    """A name outside the rules is a bad request with a sentence."""
    for name in ("Upper", "a", "with_underscore", "-dash", "x" * 80):
        body = {"name": name, "storage_namespace": f"local://{lake.name()}"}  # the SDK would not even send it
        status, _, reply = lake.ask("POST", "/api/v1/repositories", body)
        assert status == 400
        assert json.loads(reply)["message"]


def what_we_do_not_have_is_refused(lake):
    """Storages by id are never ignored silently; nothing is made."""
    name = lake.name()
    with refused(400):
        lakefs.Repository(name, client=lake.client).create(storage_namespace=f"local://{name}", storage_id="other")
    with refused(404):
        _ = lakefs.Repository(name, client=lake.client).properties


def a_repository_begins_with_sample_data(lake):
    """They are committed, and nothing is staged."""
    name = lake.name()
    made = lakefs.Repository(name, client=lake.client).create(storage_namespace=f"local://{name}", include_samples=True)
    assert any(item.path for item in made.branch("main").objects())
    assert not list(made.branch("main").uncommitted())


def repositories_are_listed_in_pages(lake):
    """All of them come, by prefix and behind a name."""
    prefix = lake.name()
    names = [lake.repository(f"{prefix}-{letter}").id for letter in "dbac"]
    assert [repository.id for repository in lakefs.repositories(lake.client, prefix=prefix)] == sorted(names)
    after = lakefs.repositories(lake.client, prefix=prefix, after=f"{prefix}-b")
    assert [item.id for item in after] == [f"{prefix}-c", f"{prefix}-d"]
    page = lake.client.sdk_client.repositories_api.list_repositories(prefix=prefix, amount=2)
    assert page.pagination.has_more
    assert page.pagination.next_offset == f"{prefix}-b"


def a_repository_has_metadata(lake):
    """It is empty at first, is set, and is read by both clients."""
    made = lake.repository()
    assert made.metadata == {}
    api = lake.client.sdk_client
    api.internal_api.set_repository_metadata(made.id, lakefs_sdk.RepositoryMetadataSet(metadata={"team": "flights"}))
    assert lakefs.Repository(made.id, client=lake.client).metadata == {"team": "flights"}
    api.internal_api.delete_repository_metadata(made.id, lakefs_sdk.RepositoryMetadataKeys(keys=["team"]))
    assert lakefs.Repository(made.id, client=lake.client).metadata == {}


def rules_of_protection_are_changed_by_one_at_a_time(lake):
    """A second writer that has read the same rules is refused, so it loses no rule."""
    made, api = lake.repository(), lake.client.sdk_client.repositories_api
    tags = [api.get_branch_protection_rules_with_http_info(made.id).headers["etag"] for _ in range(2)]
    item, other = ([lakefs_sdk.BranchProtectionRule(pattern=pattern)] for pattern in ("one-*", "other-*"))
    api.set_branch_protection_rules(made.id, item, if_match=tags[0])
    with refused(412):
        api.set_branch_protection_rules(made.id, other, if_match=tags[1])
    assert [rule.pattern for rule in api.get_branch_protection_rules(made.id)] == ["one-*"]


def a_read_only_repository_is_changed_with_force(lake):
    """Without it nothing can be changed; with it objects, branches and commits are."""
    name, sdk = lake.name(), lake.client.sdk_client
    creation = lakefs_sdk.RepositoryCreation(name=name, storage_namespace=f"local://{name}", read_only=True)
    sdk.repositories_api.create_repository(creation)
    with refused(403, "read-only"):
        sdk.objects_api.upload_object(name, "main", "a", content=b"1")
    sdk.objects_api.upload_object(name, "main", "a", content=b"1", force=True)
    with refused(403):
        sdk.commits_api.commit(name, "main", lakefs_sdk.CommitCreation(message="m"))
    made = sdk.commits_api.commit(name, "main", lakefs_sdk.CommitCreation(message="m", force=True))
    with refused(403):
        sdk.branches_api.create_branch(name, lakefs_sdk.BranchCreation(name="dev", source="main"))
    sdk.branches_api.create_branch(name, lakefs_sdk.BranchCreation(name="dev", source="main", force=True))
    assert sdk.branches_api.get_branch(name, "dev").commit_id == made.id
    sdk.repositories_api.delete_repository(name, force=True)


def the_server_says_what_it_is(lake):
    """Version and storage as clients ask for them; health without a key."""
    assert tuple(map(int, lake.client.version.split("."))) >= (1, 3, 1)
    config = lake.client.storage_config
    assert config.pre_sign_support is lake.signs
    assert config.import_support
    assert config.blockstore_type == ("s3" if lake.signs else "local")
    api = lakefs_sdk.HealthCheckApi(lakefs_sdk.ApiClient(lakefs_sdk.Configuration(host=lake.endpoint + "/api/v1")))
    assert api.health_check() is None
    assert lake.client.sdk_client.auth_api.get_current_user().user.id == lake.access_key


def settings_of_a_repository_are_kept(lake):
    """Rules of retention and of protected branches are stored, returned and removed."""
    made, api = lake.repository(), lake.client.sdk_client.repositories_api
    with refused(404):
        api.get_gc_rules(made.id)
    rules = lakefs_sdk.GarbageCollectionRules(
        default_retention_days=7, branches=[{"branch_id": "main", "retention_days": 30}]
    )
    api.set_gc_rules(made.id, rules)
    assert api.get_gc_rules(made.id) == rules
    api.delete_gc_rules(made.id)
    with refused(404):
        api.get_gc_rules(made.id)
    api.set_branch_protection_rules(made.id, [lakefs_sdk.BranchProtectionRule(pattern="stable-*")])
    assert [rule.pattern for rule in api.get_branch_protection_rules(made.id)] == ["stable-*"]
    stable = made.branch("stable-1").create("main")
    with refused(403):
        stable.object("a").upload(b"1")
    with refused(403):
        stable.delete()
