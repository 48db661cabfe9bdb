"""Users through the gateway: the same policies hold as over REST."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import urllib3

from lakebed.server.permissions import Statement

OBJECTS = "arn:lakefs:fs:::repository/analytics/object/"
READ = ("fs:ListObjects", "fs:ListBranches", "fs:ReadRepository", "fs:ListRepositories")


@pytest.fixture
def new_user(gateway: Any) -> Callable[..., Any]:
    """Make users whose one policy has the statements."""

    def make(name: str, *statements: Statement) -> Any:
        keys = gateway.running.site.keys
        keys.identity.create_user(name)
        keys.identity.create_policy(name, statements)
        keys.identity.attach(name, user=name)
        made = keys.create_of_user(name)
        return type(gateway)(gateway.running, made.key.id, made.secret)

    return make


def allow(resource: str, *actions: str) -> Statement:
    """A statement that allows."""
    return Statement("allow", actions, (resource,))


def test_objects_are_read_and_written_where_a_policy_allows(
    gateway: Any, bucket: str, new_user: Callable[..., Any], code: Callable[..., str]
) -> None:
    """Each operation on an object is allowed below one folder and refused outside, whichever way it is named."""
    owner = gateway.s3()
    for key in ("a/1", "b/1"):
        owner.put_object(Bucket=bucket, Key=key, Body=b"12345")
    user = new_user(
        "writer", allow(OBJECTS + "a/*", "fs:ReadObject", "fs:WriteObject", "fs:DeleteObject"),
        allow("arn:lakefs:fs:::repository/analytics", *READ),
    ).s3()  # fmt: skip
    branch = bucket.partition(".")[2]
    assert user.get_object(Bucket=bucket, Key="a/1")["Body"].read() == b"12345"
    assert user.get_object(Bucket="analytics", Key=f"{branch}/a/1")["Body"].read() == b"12345"
    user.put_object(Bucket=bucket, Key="a/2", Body=b"2")
    user.copy_object(Bucket=bucket, Key="a/3", CopySource=f"{bucket}/a/2")
    upload = user.create_multipart_upload(Bucket=bucket, Key="a/4")["UploadId"]
    part = user.upload_part(Bucket=bucket, Key="a/4", UploadId=upload, PartNumber=1, Body=b"4")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    user.complete_multipart_upload(Bucket=bucket, Key="a/4", UploadId=upload, MultipartUpload=parts)
    refused: list[Callable[[], Any]] = [
        lambda: user.get_object(Bucket=bucket, Key="b/1"),
        lambda: user.get_object(Bucket="analytics", Key=f"{branch}/b/1"),
        lambda: user.put_object(Bucket=bucket, Key="b/2", Body=b"2"),
        lambda: user.delete_object(Bucket=bucket, Key="b/1"),
        lambda: user.copy_object(Bucket=bucket, Key="a/5", CopySource=f"{bucket}/b/1"),
        lambda: user.copy_object(Bucket=bucket, Key="b/5", CopySource=f"{bucket}/a/1"),
        lambda: user.create_multipart_upload(Bucket=bucket, Key="b/4"),
        lambda: user.create_bucket(Bucket="analytics.other"),
        lambda: user.delete_bucket(Bucket=bucket),
        lambda: user.list_objects_v2(Bucket="missing"),
    ]
    assert [code(call) for call in refused] == ["AccessDenied"] * len(refused)
    copied = user.create_multipart_upload(Bucket=bucket, Key="a/6")["UploadId"]
    assert code(
        lambda: user.upload_part_copy(
            Bucket=bucket, Key="a/6", UploadId=copied, PartNumber=1, CopySource=f"{bucket}/b/1"
        )
    ) == "AccessDenied"  # fmt: skip
    both = user.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "a/2"}, {"Key": "b/1"}]})
    assert [row["Key"] for row in both["Deleted"]] == ["a/2"]
    assert [(row["Key"], row["Code"]) for row in both["Errors"]] == [("b/1", "AccessDenied")]
    keys = [row["Key"] for row in user.list_objects_v2(Bucket=bucket)["Contents"]]
    assert keys == ["a/1", "a/3", "a/4", "b/1"]
    assert [row["Name"] for row in user.list_buckets()["Buckets"]] == ["analytics"]


def test_a_user_without_policies_may_nothing(
    bucket: str, new_user: Callable[..., Any], code: Callable[..., str]
) -> None:
    """No object, no list, no bucket; a list of buckets is empty."""
    user = new_user("nobody", allow("*", "fs:ReadConfig")).s3()
    for call in (
        lambda: user.get_object(Bucket=bucket, Key="a"),
        lambda: user.list_objects_v2(Bucket=bucket),
        lambda: user.list_objects(Bucket=bucket),
        lambda: user.list_object_versions(Bucket=bucket),
        lambda: user.list_multipart_uploads(Bucket=bucket),
        lambda: user.get_bucket_location(Bucket=bucket),
    ):
        assert code(call) == "AccessDenied"
    reply = user.delete_objects(Bucket="analytics", Delete={"Objects": [{"Key": "main/a"}]})
    assert [row["Code"] for row in reply["Errors"]] == ["AccessDenied"]
    assert user.list_buckets()["Buckets"] == []


def test_a_policy_that_changes_during_an_upload_counts(gateway: Any, bucket: str, new_user: Callable[..., Any]) -> None:
    """A large upload is staged as the user may at its end: its bytes may have taken hours."""
    user = new_user("late", allow(OBJECTS + "*", "fs:WriteObject"))
    keys = gateway.running.site.keys
    size_bytes = gateway.running.site.options.small_object_bytes + 1

    class Body:
        """A body in whose middle the policy goes."""

        def __init__(self) -> None:
            self.sent = 0

        def read(self, amount: int = -1) -> bytes:
            if self.sent >= size_bytes:
                return b""
            if self.sent:
                keys.identity.detach("late", user="late")
                piece = b"x" * (size_bytes - self.sent)
            else:
                piece = b"x" * 1_000
            self.sent += len(piece)
            return piece

    path = f"/{bucket}/a"
    headers = user.sign("PUT", path, body=b"x" * size_bytes)
    reply = urllib3.request(
        "PUT", user.endpoint + path, body=Body(), retries=False,
        headers={**headers, "Content-Length": str(size_bytes)},
    )  # fmt: skip
    assert reply.status == 403, reply.data
    assert "Contents" not in gateway.s3().list_objects_v2(Bucket=bucket)
