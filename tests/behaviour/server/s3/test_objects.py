"""Objects through the gateway: what boto3 puts is what it gets, and what the REST interface has."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from datetime import UTC, datetime
from email.header import Header, decode_header, make_header
from typing import Any

import msgspec
import pytest
import urllib3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from lakebed.repo.heads.write import stage
from lakebed.repo.transport.transport import context_of

Code = Callable[[Callable[[], Any]], str]
MIB = 1 << 20

# Of a reply that comes before the body was asked for, boto3 leaves the connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("key", ["a.csv", "a b+c%2F/ü//x", "/begin", "end/", "a/../b&c=d;e", "~'()*!$,:@", "\t", "😀"])
@pytest.mark.parametrize("size", [0, 5, 3 * MIB])
def test_an_object_is_what_was_put(gateway: Any, key: str, size: int, code: Code) -> None:
    """Any key and size comes back with its type, metadata and MD5; a key that REST refuses is refused here too."""
    s3, body = gateway.s3(), bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    if ".." in key:
        assert code(lambda: s3.put_object(Bucket="analytics", Key="main/" + key, Body=body)) == "InvalidArgument"
        return
    put = s3.put_object(
        Bucket="analytics", Key="main/" + key, Body=body, ContentType="text/csv", Metadata={"Owner": "ann"},
        CacheControl="no-cache",
    )  # fmt: skip
    got = s3.get_object(Bucket="analytics.main", Key=key)
    assert got["Body"].read() == body
    head = s3.head_object(Bucket="analytics", Key="main/" + key)
    for reply in (got, head):
        assert (reply["ETag"], reply["ContentLength"]) == (put["ETag"], size)
        assert (reply["ContentType"], reply["Metadata"]) == ("text/csv", {"owner": "ann"})
        assert reply["CacheControl"] == "no-cache"
    assert key in [row["Key"] for row in s3.list_objects_v2(Bucket="analytics.main", Prefix=key)["Contents"]]
    s3.delete_object(Bucket="analytics", Key="main/" + key)
    assert code(lambda: s3.get_object(Bucket="analytics", Key="main/" + key)) == "NoSuchKey"


def test_the_gateway_and_rest_share_their_objects(gateway: Any, bucket: str) -> None:
    """An upload of one interface is read by the other, with its metadata; it is uncommitted until it is committed."""
    s3, branch = gateway.s3(), bucket.partition(".")[2]
    place, refs = f"/repositories/analytics/branches/{branch}", f"/repositories/analytics/refs/{branch}"
    s3.put_object(Bucket="analytics", Key=f"{branch}/shared", Body=b"s3", Metadata={"a": "1"})
    stat = gateway.rest("GET", f"{refs}/objects/stat", path="shared").json()
    assert (stat["metadata"], stat["size_bytes"]) == ({"X-Amz-Meta-a": "1"}, 2)  # as lakeFS keeps it
    assert gateway.rest("POST", f"{place}/objects", b"rest", path="rest").status == 201
    assert s3.get_object(Bucket=bucket, Key="rest")["Body"].read() == b"rest"
    commit = gateway.rest("POST", f"{place}/commits", {"message": "both"}).json()["id"]
    s3.put_object(Bucket=bucket, Key="shared", Body=b"newer")
    assert s3.get_object(Bucket="analytics", Key=f"{commit}/shared")["Body"].read() == b"s3"
    assert s3.get_object(Bucket="analytics", Key=f"{branch}@/shared")["Body"].read() == b"s3"
    assert s3.get_object(Bucket="analytics", Key=f"{branch}/shared")["Body"].read() == b"newer"


@pytest.mark.parametrize("modified_ms", [2**60, -(2**50), 1_700_000_000_000_000])
def test_a_time_beyond_all_dates_stops_no_reply(gateway: Any, bucket: str, modified_ms: int) -> None:
    """It comes with a history of lakeFS, which keeps what a client states: one such object hides no listing."""
    s3, branch, key = gateway.s3(), bucket.partition(".")[2], "odd"
    s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    repository = gateway.running.site.repositories.repository("analytics")
    entry = msgspec.structs.replace(repository.branch(branch).stat(key), modified_ms=modified_ms)
    stage(context_of(repository), branch=branch, path=key, entry=entry)
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == b"x"
    assert [row["Key"] for row in s3.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    reply = gateway.rest("GET", f"/repositories/analytics/refs/{branch}/objects", path=key)
    assert (reply.status, reply.data) == (200, b"x")
    stat = gateway.rest("GET", f"/repositories/analytics/refs/{branch}/objects/stat", path=key)
    assert stat.json()["mtime"] == modified_ms // 1000


@pytest.mark.parametrize(
    "value", ["=?utf-7?q?+2AA-?=", "=?utf-8?q?=ff?=", "=?utf-8?b?x?=", "=?zlib?q?abc?=", "=?nothing?q?a?=", "=?", "?="]
)
def test_metadata_that_only_looks_encoded_is_kept(gateway: Any, bucket: str, value: str) -> None:
    """Words in no charset, in a broken one, or that mean no character stay as they are, and are no error."""
    gateway.s3().put_object(Bucket=bucket, Key="odd", Body=b"", Metadata={"k": value})
    assert gateway.s3().head_object(Bucket=bucket, Key="odd")["Metadata"] == {"k": value}


def test_metadata_of_both_interfaces_and_in_any_script(gateway: Any, bucket: str) -> None:
    """Keys with and without S3's beginning are shown, and text beyond ASCII comes back in encoded words that decode."""
    text = "ÿ öä = _ ? " + "中" * 30
    branch = bucket.partition(".")[2]
    for key, value in (("plain", text), ("encoded", Header(text, "utf-8").encode(maxlinelen=0))):
        headers: dict[str, Any] = gateway.sign("PUT", f"/{bucket}/{key}", **{"x-amz-meta-a": value})
        headers["x-amz-meta-a"] = value.encode()
        reply = urllib3.request("PUT", f"{gateway.endpoint}/{bucket}/{key}", headers=headers, retries=False)
        assert reply.status == 200, reply.data
        stat = gateway.rest("GET", f"/repositories/analytics/refs/{branch}/objects/stat", path=key).json()
        assert stat["metadata"] == {"X-Amz-Meta-a": text}
        shown = gateway.s3().head_object(Bucket=bucket, Key=key)["Metadata"]["a"]
        assert all(len(word) <= 75 for word in shown.split(" "))
        assert str(make_header(decode_header(shown))) == text
    place = f"/repositories/analytics/branches/{branch}/objects/stat/user_metadata"
    both = {"a": "hidden", "X-Amz-Meta-A": "1", "b": "2", "bad key": "3"}
    assert gateway.rest("PUT", place, {"set": both}, path="plain").status in (201, 204)
    assert gateway.s3().head_object(Bucket=bucket, Key="plain")["Metadata"] == {"a": "1", "b": "2"}


def test_what_is_no_branch_is_read_only(gateway: Any, bucket: str, code: Code) -> None:
    """A tag and a commit are read and never written, by no operation; a branch that is not there is no bucket."""
    s3, branch = gateway.s3(), bucket.partition(".")[2]
    s3.put_object(Bucket=bucket, Key="a", Body=b"1")
    place = f"/repositories/analytics/branches/{branch}/commits"
    commit = gateway.rest("POST", place, {"message": "one"}).json()["id"]
    assert gateway.rest("POST", "/repositories/analytics/tags", {"id": "v1", "ref": branch}).status == 201
    for ref in ("v1", commit, f"{branch}@"):
        key = f"{ref}/a"
        assert code(lambda key=key: s3.put_object(Bucket="analytics", Key=key, Body=b"2")) == "AccessDenied"
        assert code(lambda key=key: s3.delete_object(Bucket="analytics", Key=key)) == "AccessDenied"
        assert code(lambda key=key: s3.create_multipart_upload(Bucket="analytics", Key=key)) == "AccessDenied"
        source = f"{bucket}/a"
        copy = code(lambda key=key, source=source: s3.copy_object(Bucket="analytics", Key=key + "2", CopySource=source))
        assert copy == "AccessDenied"
        assert s3.get_object(Bucket="analytics", Key=key)["Body"].read() == b"1"
    assert code(lambda: s3.put_object(Bucket="analytics", Key="missing/a", Body=b"2")) == "NoSuchBucket"
    assert code(lambda: s3.put_object(Bucket="analytics.missing", Key="a", Body=b"2")) == "NoSuchBucket"
    assert code(lambda: s3.get_object(Bucket="analytics.missing", Key="a")) == "NoSuchBucket"
    assert code(lambda: s3.get_object(Bucket="unknown", Key="main/a")) == "NoSuchBucket"
    assert code(lambda: s3.put_object(Bucket="analytics", Key="main", Body=b"2")) == "InvalidArgument"


def test_an_empty_object_is_read_in_ranges_and_parts(gateway: Any, bucket: str) -> None:
    """AWS's common runtime asks for a range, is told that the object has no bytes, and asks for part 1."""
    gateway.s3().put_object(Bucket=bucket, Key="e", Body=b"")
    refused = gateway.send("GET", f"/{bucket}/e", range="bytes=0-8388607")
    assert (refused.status, refused.headers["content-type"]) == (416, "application/xml")
    assert ElementTree.fromstring(refused.data).findtext("ActualObjectSize") == "0"
    part = gateway.send("GET", f"/{bucket}/e?partNumber=1")
    assert (part.status, part.headers["content-length"], part.data) == (200, "0", b"")


def test_an_object_has_no_tags(gateway: Any, bucket: str, code: Code) -> None:
    """As in lakeFS: clients that ask before they copy go on; one that is missing has none either."""
    s3 = gateway.s3()
    s3.put_object(Bucket=bucket, Key="t", Body=b"1")
    assert s3.get_object_tagging(Bucket=bucket, Key="t")["TagSet"] == []
    assert code(lambda: s3.get_object_tagging(Bucket=bucket, Key="missing")) == "NoSuchKey"
    assert code(lambda: s3.get_object_tagging(Bucket="analytics.missing", Key="t")) == "NoSuchBucket"
    put = {"Bucket": bucket, "Key": "t", "Tagging": {"TagSet": [{"Key": "a", "Value": "b"}]}}
    assert code(lambda: s3.put_object_tagging(**put)) == "NotImplemented"


def test_the_only_part_of_an_object_is_all_of_it(gateway: Any, bucket: str, code: Code) -> None:
    """However it was uploaded; others are refused, and so is a range of a part."""
    s3 = gateway.s3()
    s3.put_object(Bucket=bucket, Key="p", Body=b"0123456789")
    got = s3.get_object(Bucket=bucket, Key="p", PartNumber=1)
    shown = s3.head_object(Bucket=bucket, Key="p", PartNumber=1)
    for reply in (got, shown):
        status = reply["ResponseMetadata"]["HTTPStatusCode"]
        assert (status, reply["ContentRange"], reply["ContentLength"]) == (206, "bytes 0-9/10", 10)
        assert "PartsCount" not in reply
    assert got["Body"].read() == b"0123456789"
    for number in (2, 10_000):
        assert (
            code(lambda number=number: s3.get_object(Bucket=bucket, Key="p", PartNumber=number)) == "InvalidPartNumber"
        )
    assert code(lambda: s3.get_object(Bucket=bucket, Key="p", PartNumber=1, Range="bytes=0-1")) == "InvalidRequest"


def test_ranges_and_conditions_of_reads(gateway: Any, bucket: str, code: Code) -> None:
    """A range is that of the bytes, one outside is refused with the size; conditions decide as HTTP says."""
    s3, body = gateway.s3(), bytes(range(100))
    tag = s3.put_object(Bucket=bucket, Key="r", Body=body)["ETag"]
    for header, expected in (("bytes=0-9", body[:10]), ("bytes=90-", body[90:]), ("bytes=-7", body[-7:])):
        got = s3.get_object(Bucket=bucket, Key="r", Range=header)
        assert (got["Body"].read(), got["ResponseMetadata"]["HTTPStatusCode"]) == (expected, 206)
    assert code(lambda: s3.get_object(Bucket=bucket, Key="r", Range="bytes=100-")) == "InvalidRange"
    refused = gateway.send("GET", f"/{bucket}/r", range="bytes=100-")
    assert (refused.status, refused.headers["content-range"]) == (416, "bytes */100")
    assert s3.get_object(Bucket=bucket, Key="r", IfMatch=tag)["Body"].read() == body
    assert code(lambda: s3.get_object(Bucket=bucket, Key="r", IfMatch='"x"')) == "PreconditionFailed"
    assert code(lambda: s3.get_object(Bucket=bucket, Key="r", IfNoneMatch=tag)) == "304"
    assert code(lambda: s3.head_object(Bucket=bucket, Key="r", IfNoneMatch=tag)) == "304"
    modified = s3.head_object(Bucket=bucket, Key="r")["LastModified"]
    assert code(lambda: s3.get_object(Bucket=bucket, Key="r", IfModifiedSince=modified)) == "304"
    assert s3.get_object(Bucket=bucket, Key="r", IfUnmodifiedSince=modified)["Body"].read() == body
    shown = s3.get_object(Bucket=bucket, Key="r", ResponseContentType="text/html", ResponseCacheControl="none")
    assert (shown["ContentType"], shown["CacheControl"]) == ("text/html", "none")
    assert len(shown["Body"].read()) == shown["ContentLength"]


def test_conditional_puts_are_one_write(gateway: Any, bucket: str, code: Code) -> None:
    """If-None-Match and If-Match decide with the write; a put that is refused changes nothing."""
    s3 = gateway.s3()
    tag = s3.put_object(Bucket=bucket, Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
    big = b"2" * (2 * MIB)
    for body in (b"2", big):
        put = {"Bucket": bucket, "Key": "k", "Body": body}
        assert code(lambda put=put: s3.put_object(**put, IfNoneMatch="*")) == "PreconditionFailed"
        assert code(lambda put=put: s3.put_object(**put, IfMatch='"other"')) == "PreconditionFailed"
    assert code(lambda: s3.put_object(Bucket=bucket, Key="none", Body=b"2", IfMatch=tag)) == "NoSuchKey"
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"1"
    s3.put_object(Bucket=bucket, Key="k", Body=big, IfMatch=tag)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == big


def test_a_refusal_names_the_condition_that_failed(gateway: Any, bucket: str) -> None:
    """s3fs makes FileExistsError of If-None-Match, and another error of other conditions; of two none is named."""
    s3 = gateway.s3()
    tag = s3.put_object(Bucket=bucket, Key="k", Body=b"1")["ETag"]
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    place = {"Bucket": bucket, "Key": "k"}
    part = s3.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"2")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    finish, past = {**place, "UploadId": upload, "MultipartUpload": parts}, datetime(2000, 1, 1, tzinfo=UTC)
    for ask, condition in (
        (lambda: s3.put_object(**place, Body=b"2", IfNoneMatch="*"), "If-None-Match"),
        (lambda: s3.put_object(**place, Body=b"2", IfMatch='"x"'), "If-Match"),
        (lambda: s3.complete_multipart_upload(**finish, IfNoneMatch="*"), "If-None-Match"),
        (lambda: s3.get_object(**place, IfMatch='"x"'), "If-Match"),
        (lambda: s3.get_object(**place, IfUnmodifiedSince=past), "If-Unmodified-Since"),
        (lambda: s3.get_object(**place, IfMatch='"x"', IfNoneMatch=tag), None),
        (
            lambda: s3.copy_object(**{**place, "Key": "c"}, CopySource=f"{bucket}/k", CopySourceIfMatch='"x"'),
            "x-amz-copy-source-If-Match",
        ),
    ):
        with pytest.raises(ClientError) as refused:
            ask()
        error = refused.value.response["Error"]
        assert (error["Code"], error.get("Condition")) == ("PreconditionFailed", condition)


def address_of(gateway: Any, bucket: str, path: str) -> str:
    branch = bucket.partition(".")[2]
    stat = gateway.rest("GET", f"/repositories/analytics/refs/{branch}/objects/stat", path=path)
    return str(stat.json()["physical_address"])


def test_a_copy_moves_no_bytes_and_outlives_its_source(gateway: Any, bucket: str, code: Code) -> None:
    """A copy has the address of its source; metadata is kept or replaced; the copy stays when the source goes."""
    s3 = gateway.s3()
    s3.put_object(Bucket=bucket, Key="a", Body=b"bytes", Metadata={"m": "1"}, ContentType="text/plain")
    s3.copy_object(Bucket=bucket, Key="b", CopySource=f"{bucket}/a")
    s3.copy_object(Bucket=bucket, Key="c", CopySource=f"/{bucket}/a", MetadataDirective="REPLACE", Metadata={"m": "2"})
    assert address_of(gateway, bucket, "a") == address_of(gateway, bucket, "b") == address_of(gateway, bucket, "c")
    s3.delete_object(Bucket=bucket, Key="a")
    got = s3.get_object(Bucket=bucket, Key="b")
    assert (got["Body"].read(), got["Metadata"], got["ContentType"]) == (b"bytes", {"m": "1"}, "text/plain")
    assert s3.head_object(Bucket=bucket, Key="c")["Metadata"] == {"m": "2"}
    assert code(lambda: s3.copy_object(Bucket=bucket, Key="b", CopySource=f"{bucket}/b")) == "InvalidRequest"
    assert code(lambda: s3.copy_object(Bucket=bucket, Key="d", CopySource=f"{bucket}/none")) == "NoSuchKey"
    failed = code(lambda: s3.copy_object(Bucket=bucket, Key="d", CopySource=f"{bucket}/b", CopySourceIfMatch='"x"'))
    assert failed == "PreconditionFailed"


def test_a_copy_of_bytes_that_a_collection_has_passed_is_one_of_the_bytes(gateway: Any, bucket: str) -> None:
    """Of an object older than the boundary of a collection the copy gets bytes of its own, so neither can be taken."""
    s3, branch = gateway.s3(), bucket.partition(".")[2]
    s3.put_object(Bucket=bucket, Key="old", Body=b"bytes")
    gateway.rest("POST", f"/repositories/analytics/branches/{branch}/commits", {"message": "old"})
    context = context_of(gateway.running.site.repositories.repository("analytics"))
    ulid = address_of(gateway, bucket, "old").rpartition("/")[2]
    before = context.key_value.get(context.keys.boundary)
    context.key_value.set(context.keys.boundary, ulid[:-1].encode() + b"~")  # sorts behind it
    try:
        s3.copy_object(Bucket=bucket, Key="new", CopySource=f"{bucket}/old")
    finally:
        context.key_value.write(
            [] if before is None else [(context.keys.boundary, before)],
            [context.keys.boundary] if before is None else [],
        )
    assert address_of(gateway, bucket, "old") != address_of(gateway, bucket, "new")
    assert s3.get_object(Bucket=bucket, Key="new")["Body"].read() == b"bytes"


def test_a_copy_between_repositories_is_one_of_the_bytes(gateway: Any, bucket: str, code: Code) -> None:
    """Another repository gets the bytes; a key that may not read the source copies nothing."""
    gateway.rest("POST", "/repositories", {"name": "other", "storage_namespace": "local://other"})
    s3 = gateway.s3()
    s3.put_object(Bucket="other.main", Key="a", Body=b"o" * (2 * MIB))
    s3.copy_object(Bucket=bucket, Key="a", CopySource="other/main/a")
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"o" * (2 * MIB)
    limited = gateway.with_key("write", "analytics").s3()
    assert code(lambda: limited.copy_object(Bucket=bucket, Key="b", CopySource="other/main/a")) == "AccessDenied"


def test_many_objects_are_deleted_in_one_request(gateway: Any, bucket: str) -> None:
    """Up to a thousand keys go, missing ones too; a key that cannot be deleted is reported, and the others go."""
    s3 = gateway.s3()
    for name in "abc":
        s3.put_object(Bucket=bucket, Key=name, Body=b"1")
    wanted = [{"Key": "a"}, {"Key": "missing"}, {"Key": "b", "VersionId": "null"}, {"Key": "c", "VersionId": "7"}]
    reply = s3.delete_objects(Bucket=bucket, Delete={"Objects": wanted})
    assert {row["Key"] for row in reply["Deleted"]} == {"a", "missing", "b"}
    assert [(row["Key"], row["Code"]) for row in reply["Errors"]] == [("c", "NoSuchVersion")]
    assert [row["Key"] for row in s3.list_objects(Bucket=bucket)["Contents"]] == ["c"]


class ChunkedAuth(S3SigV4Auth):
    """Signs a body as one in chunks."""

    def payload(self, request: Any) -> str:
        return "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


def send_chunked(gateway: Any, path: str, body: bytes, **headers: str) -> int:
    """Put a body in chunks; the status."""
    request = AWSRequest("PUT", gateway.endpoint + path, data=body, headers=headers)
    ChunkedAuth(Credentials(gateway.access_key, gateway.secret), "s3", "us-east-1").add_auth(request)
    url = gateway.endpoint + path
    return urllib3.request("PUT", url, body=body, headers=dict(request.headers.items()), retries=False).status


def test_a_reference_is_an_empty_directory(gateway: Any, bucket: str, code: Code) -> None:
    """``branch/`` can be put, read and deleted as a directory marker, which changes nothing; with bytes it cannot."""
    s3, key = gateway.s3(), bucket.partition(".")[2] + "/"
    s3.put_object(Bucket="analytics", Key=key, Body=b"")
    assert s3.head_object(Bucket="analytics", Key=key)["ContentLength"] == 0
    s3.delete_object(Bucket="analytics", Key=key)
    chunked = {"x-amz-decoded-content-length": "0", "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}
    assert send_chunked(gateway, f"/analytics/{key}", b"0\r\n\r\n", **chunked) == 200, "as Hadoop's client sends it"
    assert code(lambda: s3.put_object(Bucket="analytics", Key=key, Body=b"x")) == "InvalidArgument"
    assert code(lambda: s3.head_object(Bucket="analytics", Key="missing/")) == "404"


def test_buckets_may_stand_in_front_of_the_host(gateway: Any, bucket: str) -> None:
    """With a domain of the gateway, a bucket is the first part of the host's name."""
    gateway.s3().put_object(Bucket=bucket, Key="a/b", Body=b"host")
    host = f"{bucket}.s3.localhost"
    request = AWSRequest("GET", f"http://{host}/a/b")
    S3SigV4Auth(Credentials(gateway.access_key, gateway.secret), "s3", "us-east-1").add_auth(request)
    reply = urllib3.request(
        "GET", gateway.endpoint + "/a/b", headers={**dict(request.headers.items()), "Host": host}, retries=False
    )
    assert (reply.status, reply.data) == (200, b"host")
