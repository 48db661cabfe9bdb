"""Requests that older clients sign by version 2: what is signed counts, and what is not decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import urllib3
from botocore.auth import HmacV1Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

Code = Callable[[Callable[[], Any]], str]
Error = Callable[[urllib3.BaseHTTPResponse], tuple[int, str]]

PART = b"p" * (5 << 20)
WEEK_S = 7 * 86_400


def client(gateway: Any, *, secret: str = "", query: bool = False) -> Any:
    """An unmodified boto3 that signs by version 2, in headers or, of presigned addresses, in the query."""
    config = Config(
        signature_version="s3-query" if query else "s3", retries={"max_attempts": 1}, s3={"addressing_style": "path"}
    )
    return gateway.client(config, secret=secret)


def sign(gateway: Any, method: str, url: str, **headers: str) -> dict[str, str]:
    """The headers of a request to a path, or to another host."""
    request = AWSRequest(method, url, headers=headers)
    HmacV1Auth(Credentials(gateway.access_key, gateway.secret)).add_auth(request)
    return dict(request.headers.items())


@pytest.mark.parametrize("key", ["k", "a b/ü+%2F?&=/c", "x//y/", "~-._!*'()"])
def test_boto3_writes_and_reads(gateway: Any, bucket: str, key: str) -> None:
    """Objects with odd keys, metadata and listings are those that a client with version 4 sees."""
    s3 = client(gateway)
    s3.put_object(Bucket=bucket, Key=key, Body=b"old", Metadata={"a": "1"}, ContentType="text/plain")
    seen = gateway.s3().get_object(Bucket=bucket, Key=key)
    assert (seen["Body"].read(), seen["Metadata"], seen["ContentType"]) == (b"old", {"a": "1"}, "text/plain")
    assert s3.get_object(Bucket=bucket, Key=key, Range="bytes=1-")["Body"].read() == b"ld"
    shown = s3.get_object(Bucket=bucket, Key=key, ResponseContentType="text/x")
    assert (shown["Body"].read(), shown["ContentType"]) == (b"old", "text/x")
    assert [row["Key"] for row in s3.list_objects_v2(Bucket=bucket, Prefix=key[:1])["Contents"]] == [key]
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": key})
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key}]})
    assert [row["Key"] for row in s3.list_objects(Bucket=bucket)["Contents"]] == ["copy"]


def test_an_upload_in_parts(gateway: Any, bucket: str) -> None:
    """The names of a query that choose the operation are signed."""
    s3 = client(gateway)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="large")["UploadId"]
    place = {"Bucket": bucket, "Key": "large", "UploadId": upload}
    parts = [
        {"PartNumber": number, "ETag": s3.upload_part(**place, PartNumber=number, Body=body)["ETag"]}
        for number, body in ((1, PART), (2, b"end"))
    ]
    s3.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})
    assert s3.get_object(Bucket=bucket, Key="large")["Body"].read() == PART + b"end"


def test_who_changes_a_request_is_refused(gateway: Any, bucket: str, code: Code, error: Error) -> None:
    """A wrong secret, another path, method, sub-resource or header, and a clock that differs: nothing changes."""
    client(gateway).put_object(Bucket=bucket, Key="k", Body=b"stays")
    wrong = client(gateway, secret=gateway.secret[:-1] + "~")
    assert code(lambda: wrong.list_objects(Bucket=bucket)) == "SignatureDoesNotMatch"
    url = f"{gateway.endpoint}/{bucket}/k"
    signed = sign(gateway, "PUT", url)
    key, _, signature = signed["Authorization"].rpartition(":")
    for method, place, changed in (
        ("DELETE", url, {}),
        ("PUT", url + "2", {}),
        ("PUT", url + "?uploadId=1&partNumber=1", {}),
        ("PUT", url + "?response-content-type=a", {}),
        ("PUT", url, {"x-amz-copy-source": f"{bucket}/other"}),
        ("PUT", url, {"Content-Type": "text/html"}),
        ("PUT", url, {"x-amz-date": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())}),
        ("PUT", url, {"Authorization": f"{key}:{signature[1:-1]}{signature[0]}="}),
    ):
        reply = urllib3.request(method, place, body=b"new", headers=signed | changed, retries=False)
        assert error(reply) == (403, "SignatureDoesNotMatch"), (method, place, changed)
    late = signed | {"Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() - 3_600))}
    assert error(urllib3.request("PUT", url, headers=late, retries=False)) == (403, "RequestTimeTooSkewed")
    chunks = sign(gateway, "PUT", url, **{"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"})
    assert error(urllib3.request("PUT", url, headers=chunks, retries=False)) == (400, "InvalidArgument")
    hashed = sign(gateway, "PUT", url, **{"x-amz-content-sha256": "0" * 64})
    assert error(urllib3.request("PUT", url, body=b"new", headers=hashed, retries=False))[0] == 400
    for header in ("AWS", "AWS ", "AWS a", "AWS :", "AWS a:"):
        reply = urllib3.request("PUT", url, headers={"Authorization": header}, retries=False)
        assert error(reply)[0] in (400, 403)
    assert client(gateway).get_object(Bucket=bucket, Key="k")["Body"].read() == b"stays"


def test_a_bucket_in_the_hosts_name_is_signed(gateway: Any, bucket: str, error: Error) -> None:
    """The host itself is not signed, and the bucket that it names is."""
    client(gateway).put_object(Bucket=bucket, Key="k", Body=b"x")
    signed = sign(gateway, "GET", f"http://any/{bucket}/k")
    for host, status in ((f"{bucket}.s3.localhost", 200), ("analytics.s3.localhost", 403)):
        reply = urllib3.request("GET", gateway.endpoint + "/k", headers=signed | {"Host": host}, retries=False)
        assert reply.status == status


def test_a_presigned_address_permits_one_request_for_its_time(gateway: Any, bucket: str, error: Error) -> None:
    """An address gets what it names until it expires, which is at most in a week."""
    client(gateway).put_object(Bucket=bucket, Key="k", Body=b"x")
    s3, place = client(gateway, query=True), {"Bucket": bucket, "Key": "k"}
    url = s3.generate_presigned_url("get_object", Params=place, ExpiresIn=60)
    assert "AWSAccessKeyId=" in url
    assert urllib3.request("GET", url, retries=False).data == b"x"
    for seconds in (-1, WEEK_S + 60):
        other = s3.generate_presigned_url("get_object", Params=place, ExpiresIn=seconds)
        assert error(urllib3.request("GET", other, retries=False)) == (403, "AccessDenied")
    later = url.replace("Expires=", "Expires=1")
    for method, address in (("PUT", url), ("GET", url.replace("/k?", "/j?")), ("GET", url + "&acl="), ("GET", later)):
        assert error(urllib3.request(method, address, retries=False))[0] == 403


@pytest.mark.parametrize("version", [2, 4])
def test_a_presigned_address_may_choose_any_file_name(gateway: Any, bucket: str, version: int) -> None:
    """Values of a query are signed as UTF-8, and so is the header that a reply then has."""
    s3 = client(gateway, query=True) if version == 2 else gateway.s3()
    s3.put_object(Bucket=bucket, Key="ü", Body=b"x")
    for name in ("größe", "世"):
        place = {"Bucket": bucket, "Key": "ü", "ResponseContentDisposition": f"attachment; filename={name}"}
        reply = urllib3.request("GET", s3.generate_presigned_url("get_object", Params=place), retries=False)
        assert (reply.status, reply.data) == (200, b"x")
        assert reply.headers["content-disposition"].encode("latin-1").decode().endswith(name)


def test_a_key_that_was_revoked_signs_nothing(gateway: Any, bucket: str, code: Code) -> None:
    """Nothing that signs by version 2 is kept, so a revocation counts at once."""
    other = gateway.with_key("read")
    s3 = client(other)
    assert code(lambda: s3.put_object(Bucket=bucket, Key="k", Body=b"x")) == "AccessDenied"
    assert s3.list_objects(Bucket=bucket)["Name"] == bucket
    gateway.running.site.keys.revoke(other.access_key)
    assert code(lambda: s3.list_objects(Bucket=bucket)) == "InvalidAccessKeyId"
