"""Listings through the gateway, against a plain computation over the keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lakebed.key_value.port import KeyValue
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch, delete_branch
from lakebed.server.s3.call import place_of
from lakebed.server.s3.listing import KeyPage, list_keys
from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper
from worlds.repo.memory_repository import MemoryRepository, open_context, put

Code = Callable[[Callable[[], Any]], str]

KEYS = ["a", "a-b", "a/1", "a/2", "a/b/3", "b c+d", "b/%41/x", "c//e", "ü/1", "z"]


@pytest.fixture(scope="module")
def listed_bucket(gateway: Any) -> str:
    """A branch with `KEYS`, half of them committed."""
    s3 = gateway.s3()
    s3.create_bucket(Bucket="analytics.listed")
    for number, key in enumerate(KEYS):
        if number == len(KEYS) // 2:
            gateway.rest("POST", "/repositories/analytics/branches/listed/commits", {"message": "half"})
        s3.put_object(Bucket="analytics.listed", Key=key, Body=key.encode())
    return "analytics.listed"


def fold(keys: list[str], prefix: str, delimiter: str) -> tuple[list[str], list[str]]:
    """Keys and common prefixes, in the order of their bytes."""
    plain, common = [], set()
    for key in sorted((key for key in keys if key.startswith(prefix)), key=str.encode):
        at = key.find(delimiter, len(prefix)) if delimiter else -1
        if at < 0:
            plain.append(key)
        else:
            common.add(key[: at + len(delimiter)])
    return plain, sorted(common, key=str.encode)


@pytest.mark.parametrize("size", [2, 1_000])
@pytest.mark.parametrize("delimiter", ["", "/", "b", "//"])
@pytest.mark.parametrize("prefix", ["", "a", "c/", "none"])
def test_pages_of_any_size_are_one_listing(
    gateway: Any, listed_bucket: str, prefix: str, delimiter: str, size: int
) -> None:
    """Both versions, in both forms of bucket, list each key and common prefix once and in order, page by page."""
    s3 = gateway.s3()
    expected = fold(KEYS, prefix, delimiter)
    for bucket, front in ((listed_bucket, ""), ("analytics", "listed/")):
        for operation in ("list_objects", "list_objects_v2"):
            plain, common = [], []
            pages = s3.get_paginator(operation).paginate(
                Bucket=bucket, Prefix=front + prefix, Delimiter=delimiter, PaginationConfig={"PageSize": size}
            )
            for page in pages:
                shown = len(page.get("Contents", [])) + len(page.get("CommonPrefixes", []))
                assert shown <= size
                plain += [row["Key"].removeprefix(front) for row in page.get("Contents", [])]
                common += [row["Prefix"].removeprefix(front) for row in page.get("CommonPrefixes", [])]
            assert (plain, common) == expected


@pytest.mark.parametrize("operation", ["list_objects", "list_objects_v2", "list_object_versions"])
def test_a_prefix_that_xml_cannot_hold_is_listed(gateway: Any, operation: str) -> None:
    """Clients can read the reply, which says the prefix in percent signs where it has to."""
    s3 = gateway.s3()
    bucket = f"analytics.{operation}"
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="\x01/\uffff/k", Body=b"")
    for prefix in ("\x01", "\x01/\uffff/"):
        page = getattr(s3, operation)(Bucket=bucket, Prefix=prefix)
        assert [row["Key"] for row in page.get("Contents") or page["Versions"]] == ["\x01/\uffff/k"]


def test_a_listing_begins_behind_a_key(gateway: Any, listed_bucket: str, code: Code) -> None:
    """start-after and marker are exclusive, and need not be keys; other tokens than ours are refused."""
    s3 = gateway.s3()
    for after in ("a/1", "a/1x", "a/", "", "zz"):
        expected = [key for key in sorted(KEYS, key=str.encode) if key.encode() > after.encode()]
        second = s3.list_objects_v2(Bucket=listed_bucket, StartAfter=after)
        first = s3.list_objects(Bucket=listed_bucket, Marker=after)
        assert [row["Key"] for row in second.get("Contents", [])] == expected
        assert [row["Key"] for row in first.get("Contents", [])] == expected
    assert s3.list_objects_v2(Bucket=listed_bucket, MaxKeys=0)["KeyCount"] == 0
    token = code(lambda: s3.list_objects_v2(Bucket=listed_bucket, ContinuationToken="é"))
    assert token == "InvalidArgument"
    assert code(lambda: s3.list_objects_v2(Bucket="analytics.missing")) == "NoSuchBucket"
    assert code(lambda: s3.list_objects(Bucket="missing")) == "NoSuchBucket"


def test_branches_stand_in_front_of_the_keys_of_a_repository(gateway: Any, listed_bucket: str) -> None:
    """Without a reference in the prefix, a repository's bucket lists its branches, and without a delimiter all keys."""
    s3 = gateway.s3()
    gateway.rest("POST", "/repositories", {"name": "branches", "storage_namespace": "local://branches"})
    for branch in ("dev", "dev-2", "x"):
        s3.create_bucket(Bucket=f"branches.{branch}")
        s3.put_object(Bucket="branches", Key=f"{branch}/k", Body=b"1")
        s3.put_object(Bucket="branches", Key=f"{branch}/l", Body=b"1")
    folded = s3.list_objects_v2(Bucket="branches", Delimiter="/")
    assert [row["Prefix"] for row in folded["CommonPrefixes"]] == ["dev-2/", "dev/", "main/", "x/"]
    folded = s3.list_objects_v2(Bucket="branches", Delimiter="/", Prefix="dev")
    assert [row["Prefix"] for row in folded["CommonPrefixes"]] == ["dev-2/", "dev/"]
    keys = ["dev-2/k", "dev-2/l", "dev/k", "dev/l", "x/k", "x/l"]
    for size in (1, 2, 5, 1_000):
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket="branches", PaginationConfig={"PageSize": size})
        assert [row["Key"] for page in pages for row in page.get("Contents", [])] == keys
    for prefix in ("missing/", "/", "a folder/", "~/x", "main~1~/"):
        assert s3.list_objects_v2(Bucket="branches", Prefix=prefix)["KeyCount"] == 0
        assert "Contents" not in s3.list_objects(Bucket="branches", Prefix=prefix, Delimiter="/")
    assert s3.list_object_versions(Bucket="branches.x")["Versions"][0]["VersionId"] == "null"


@pytest.mark.parametrize("delimiter", ["/", "-"])
def test_a_page_that_begins_inside_of_a_branch(gateway: Any, delimiter: str) -> None:
    """A common prefix in front of the keys is listed as one among them: where there is more of it behind the marker."""
    s3 = gateway.s3()
    name = f"inside{ord(delimiter)}"
    gateway.rest("POST", "/repositories", {"name": name, "storage_namespace": f"local://{name}"})
    keys = [f"{branch}/{key}" for branch in ("dev", "dev-2", "x") for key in ("k", "l")]
    for branch in ("dev", "dev-2", "x"):
        s3.create_bucket(Bucket=f"{name}.{branch}")
    for key in keys:
        s3.put_object(Bucket=name, Key=key, Body=b"1")
    prefix = "" if delimiter == "-" else "dev"  # without one, main is listed too, which has no key
    for after in ("dev-2/", "dev-2/k", "dev-2/l", "dev-2/m", "dev/", "dev/k", "dev/l", "dev-", "d", "dex"):
        page = s3.list_objects_v2(Bucket=name, Prefix=prefix, Delimiter=delimiter, StartAfter=after)
        plain, common = fold([key for key in keys if key.encode() > after.encode()], prefix, delimiter)
        common = [text for text in common if text != after]
        assert [row["Prefix"] for row in page.get("CommonPrefixes", [])] == common, after
        assert [row["Key"] for row in page.get("Contents", [])] == plain, after


def test_a_page_says_where_the_next_one_begins(gateway: Any, listed_bucket: str) -> None:
    """Without a delimiter too: rclone, where it is not said, goes by the last key, and decodes that key twice."""
    s3 = gateway.s3()
    page = s3.list_objects(Bucket=listed_bucket, MaxKeys=KEYS.index("b/%41/x") + 1)
    assert page["IsTruncated"]
    assert page["NextMarker"] == page["Contents"][-1]["Key"] == sorted(KEYS, key=str.encode)[KEYS.index("b/%41/x")]
    assert "NextMarker" not in s3.list_objects(Bucket=listed_bucket)


def test_buckets_are_repositories_and_branches(gateway: Any, bucket: str, code: Code) -> None:
    """A key sees its repositories; branches are listed when asked for, made, and deleted when they are empty."""
    s3 = gateway.s3()
    assert "analytics" in [row["Name"] for row in s3.list_buckets()["Buckets"]]
    assert bucket in [row["Name"] for row in s3.list_buckets(Prefix="analytics.")["Buckets"]]
    assert s3.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert code(lambda: s3.head_bucket(Bucket="analytics.missing")) == "404"
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    assert "Status" not in s3.get_bucket_versioning(Bucket=bucket)
    assert code(lambda: s3.create_bucket(Bucket=bucket)) == "BucketAlreadyOwnedByYou"
    assert code(lambda: s3.create_bucket(Bucket="analytics")) == "BucketAlreadyExists"
    assert code(lambda: s3.create_bucket(Bucket="missing")) == "NotImplemented"
    assert code(lambda: s3.create_bucket(Bucket="missing.branch")) == "NotImplemented"
    s3.put_object(Bucket=bucket, Key="k", Body=b"1")
    assert code(lambda: s3.delete_bucket(Bucket=bucket)) == "BucketNotEmpty"
    s3.delete_object(Bucket=bucket, Key="k")
    s3.delete_bucket(Bucket=bucket)
    assert code(lambda: s3.delete_bucket(Bucket=bucket)) == "NoSuchBucket"
    assert code(lambda: s3.delete_bucket(Bucket="analytics")) == "AccessDenied"
    assert code(lambda: s3.delete_bucket(Bucket="analytics.main")) in ("AccessDenied", "BucketNotEmpty")
    assert code(lambda: s3.get_bucket_acl(Bucket="analytics")) == "NotImplemented"


class Deleting(KeyValueWrapper):
    """A key-value store in which another process deletes a branch behind so many snapshots."""

    def __init__(self, inner: KeyValue, context: RepositoryContext, branch: str, *, behind: int) -> None:
        super().__init__(inner)
        self._context, self._branch, self._left = context, branch, behind

    def intercept(self, call: KeyValueCall, perform: Callable[[], Any]) -> Any:
        """Let the other delete it, once."""
        result = perform()
        if call.kind == "snapshot":
            self._left -= 1
            if self._left == 0:
                delete_branch(self._context, self._branch)
        return result


@pytest.mark.parametrize("behind", [1, 2, 3, 4])
def test_a_branch_that_goes_meanwhile_spoils_no_listing(behind: int) -> None:
    """The bucket of a repository lists the keys of all other branches; of the one that goes some moment, or none."""
    with open_context(MemoryRepository()) as context:
        for name in ("dev", "etl"):
            create_branch(context, name, source="main")
        for name in ("dev", "etl", "main"):
            put(context, name, "a", "1")
        seen = replace(context, key_value=Deleting(context.key_value, context, "etl", behind=behind))
        keys = [row.path for row in list_keys(seen, place_of("analytics", ""), KeyPage("", "", "", 1_001))]
        assert [key for key in keys if key != "etl/a"] == ["dev/a", "main/a"]
