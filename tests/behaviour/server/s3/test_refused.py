"""Requests that the gateway refuses: S3's own codes in XML, and nothing changed."""

from __future__ import annotations

import gzip
import hashlib
import socket
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import urllib3

from lakebed.errors import InvalidRequest
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from worlds.waiting import wait_until

Code = Callable[[Callable[[], Any]], str]
Error = Callable[[urllib3.BaseHTTPResponse], tuple[int, str]]

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def keys_of(gateway: Any, bucket: str) -> list[str]:
    return [row["Key"] for row in gateway.s3().list_objects(Bucket=bucket).get("Contents", [])]


def test_who_is_not_known_gets_nothing(gateway: Any, bucket: str, code: Code, error: Error) -> None:
    """A wrong secret, an unknown key, a changed request and another version of signatures are refused alike."""
    wrong = type(gateway)(gateway.running, gateway.access_key, gateway.secret[:-1] + "~").s3()
    unknown = type(gateway)(gateway.running, "LAKEBEDNOBODY", gateway.secret).s3()
    assert code(lambda: wrong.list_buckets()) == "SignatureDoesNotMatch"
    assert code(lambda: wrong.put_object(Bucket=bucket, Key="k", Body=b"x")) == "SignatureDoesNotMatch"
    assert code(lambda: unknown.list_buckets()) == "InvalidAccessKeyId"
    signed = gateway.sign("PUT", f"/{bucket}/k", body=b"body")
    for changed, path in (
        ({"x-amz-meta-a": "1"}, f"/{bucket}/k"),
        ({"Authorization": signed["Authorization"][:-1] + "x"}, f"/{bucket}/k"),
        ({}, f"/{bucket}/other"),
        ({}, f"/{bucket}/k?acl"),
    ):
        url = gateway.endpoint + path
        reply = urllib3.request("PUT", url, body=b"body", headers=signed | changed, retries=False)
        assert error(reply)[0] == 403
    reply = urllib3.request("PUT", f"{gateway.endpoint}/{bucket}/k", body=b"bodx", headers=signed, retries=False)
    assert error(reply) == (400, "XAmzContentSHA256Mismatch")
    old = urllib3.request("GET", gateway.endpoint + "/", headers={"Authorization": "AWS a:b"}, retries=False)
    assert error(old) == (403, "AccessDenied")
    assert keys_of(gateway, bucket) == []


def test_a_presigned_url_permits_one_request_for_its_time(gateway: Any, bucket: str, error: Error) -> None:
    """A presigned URL gets and puts what it names, until it expires; with another method or key it does nothing."""
    s3 = gateway.s3()
    put = s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "p"}, ExpiresIn=60)
    get = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "p"}, ExpiresIn=60)
    assert urllib3.request("PUT", put, body=b"presigned", retries=False).status == 200
    assert urllib3.request("GET", get, retries=False).data == b"presigned"
    for method, url in (("DELETE", get), ("GET", get.replace("/p?", "/q?")), ("GET", get + "0")):
        assert error(urllib3.request(method, url, retries=False))[0] == 403
    short = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "p"}, ExpiresIn=1)
    wait_until(lambda: urllib3.request("GET", short, retries=False).status == 403)


def test_clocks_that_differ_are_refused(gateway: Any, error: Error) -> None:
    """A request of an hour ago, or ahead, is refused, and says that it is the time."""
    for hours in (-1, 1):
        when = time.gmtime(time.time() + 3_600 * hours)
        signed = gateway.sign("GET", "/")
        stamp = time.strftime("%Y%m%dT%H%M%SZ", when)
        old = signed["X-Amz-Date"]
        headers = signed | {"X-Amz-Date": stamp}
        headers["Authorization"] = headers["Authorization"].replace(old[:8], stamp[:8])
        reply = urllib3.request("GET", gateway.endpoint + "/", headers=headers, retries=False)
        assert error(reply) == (403, "RequestTimeTooSkewed")


def test_any_region_may_be_signed_for(gateway: Any, bucket: str) -> None:
    """A client's region is part of its signature, and of nothing else."""
    gateway.s3(region="ap-southeast-7").put_object(Bucket=bucket, Key="k", Body=b"x")
    assert keys_of(gateway, bucket) == ["k"]


def test_keys_and_roles_hold_as_over_rest(gateway: Any, bucket: str, code: Code) -> None:
    """A reader writes nothing, a limited key sees its repositories only, and a revoked one is refused at once."""
    gateway.rest("POST", "/repositories", {"name": "hidden", "storage_namespace": "local://hidden"})
    gateway.s3().put_object(Bucket="hidden", Key="main/secret", Body=b"x")
    limited, reader = gateway.with_key("write", "analytics"), gateway.with_key("read")
    s3 = limited.s3()
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    assert [row["Name"] for row in s3.list_buckets()["Buckets"]] == ["analytics"]
    for call in (
        lambda: s3.get_object(Bucket="hidden", Key="main/secret"),
        lambda: s3.list_objects(Bucket="hidden"),
        lambda: s3.list_objects(Bucket="hidden.main"),
        lambda: s3.get_object(Bucket="no-such-repository", Key="main/secret"),
        lambda: s3.copy_object(Bucket=bucket, Key="c", CopySource="hidden/main/secret"),
        lambda: s3.create_bucket(Bucket="hidden.mine"),
    ):
        assert code(call) == "AccessDenied"
    assert "Buckets" not in s3.list_buckets(Prefix="hidden.") or not s3.list_buckets(Prefix="hidden.")["Buckets"]
    s3 = reader.s3()
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"
    for call in (
        lambda: s3.put_object(Bucket=bucket, Key="k", Body=b"y"),
        lambda: s3.delete_object(Bucket=bucket, Key="k"),
        lambda: s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k"}]}),
        lambda: s3.create_multipart_upload(Bucket=bucket, Key="k"),
        lambda: s3.copy_object(Bucket=bucket, Key="c", CopySource=f"{bucket}/k"),
        lambda: s3.delete_bucket(Bucket=bucket),
    ):
        assert code(call) == "AccessDenied"
    gateway.running.site.keys.revoke(reader.access_key)
    assert code(lambda: s3.list_buckets()) == "InvalidAccessKeyId"
    assert keys_of(gateway, bucket) == ["k"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("<!DOCTYPE d [<!ENTITY e 'k'>]><Delete><Object><Key>&e;</Key></Object></Delete>", "MalformedXML"),
        ("<!DOCTYPE d SYSTEM 'file:///etc/passwd'><Delete/>", "MalformedXML"),
        ("<Delete><Object><Key>&e;</Key></Object></Delete>", "MalformedXML"),
        ("<Delete><Object><Key>k</Key></Object>", "MalformedXML"),
        ("<Other><Object><Key>k</Key></Object></Other>", "MalformedXML"),
        ("<Delete></Delete>", "MalformedXML"),
        ("<Delete><Object></Object></Delete>", "MalformedXML"),
        ("<a>" * 5_000, "MalformedXML"),
        ("", "MalformedXML"),
        ("<Delete>" + "<Object><Key>k</Key></Object>" * 1_001 + "</Delete>", "MalformedXML"),
        ("<Delete>" + " " * (10 << 20) + "</Delete>", "MaxMessageLengthExceeded"),
    ],
)
def test_xml_that_is_none_or_is_an_attack_is_refused(
    gateway: Any, bucket: str, error: Error, body: str, code: str
) -> None:
    """Entities, document types, depth, size and broken XML are refused before anything is deleted."""
    gateway.s3().put_object(Bucket=bucket, Key="k", Body=b"x")
    reply = gateway.send("POST", f"/{bucket}?delete=", body=body.encode())
    assert error(reply) == (400, code)
    assert keys_of(gateway, bucket) == ["k"]


def test_compressed_xml_is_refused_as_such(gateway: Any, bucket: str, error: Error) -> None:
    """It deletes nothing; of an object the encoding is metadata, and its bytes stay as they came."""
    body = gzip.compress(b"<Delete><Object><Key>k</Key></Object></Delete>")
    assert gateway.send("PUT", f"/{bucket}/k", body=body, **{"Content-Encoding": "gzip"}).status == 200
    reply = gateway.send("POST", f"/{bucket}?delete=", body=body, **{"Content-Encoding": "gzip"})
    assert error(reply) == (400, "MalformedXML")
    assert b"Content-Encoding" in reply.data
    found = gateway.s3().get_object(Bucket=bucket, Key="k")
    assert (found["ContentEncoding"], found["Body"].read()) == ("gzip", body)


def test_bodies_that_are_not_as_announced_are_refused(gateway: Any, bucket: str, error: Error) -> None:
    """A wrong MD5 or checksum, one that is malformed, and a body that never comes to its end store nothing."""
    body = b"x" * 100
    md5, other = (b64encode(hashlib.md5(text).digest()).decode() for text in (body, b"other"))
    for headers, expected in (
        ({"Content-MD5": other}, (400, "BadDigest")),
        ({"Content-MD5": "nonsense"}, (400, "InvalidDigest")),
        ({"x-amz-checksum-crc32c": "AAAAAA=="}, (400, "BadDigest")),
        ({"x-amz-checksum-sha256": "AAAA"}, (400, "InvalidRequest")),
    ):
        assert error(gateway.send("PUT", f"/{bucket}/k", body=body, **headers)) == expected
    assert gateway.send("PUT", f"/{bucket}/good", body=body, **{"Content-MD5": md5}).status == 200
    signed = gateway.sign("PUT", f"/{bucket}/k", body=body) | {"Content-Length": "100"}
    place = urlsplit(gateway.endpoint)
    with socket.create_connection((place.hostname, place.port)) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in ({"Host": place.netloc} | signed).items())
        connection.sendall(f"PUT /{bucket}/k HTTP/1.1\r\n{head}\r\n".encode() + body[:50])
    assert keys_of(gateway, bucket) == ["good"]


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("PUT", "/{bucket}/k?acl=", (501, "NotImplemented")),
        ("GET", "/{bucket}?policy=", (501, "NotImplemented")),
        ("PUT", "/{bucket}/k?tagging=", (501, "NotImplemented")),
        ("POST", "/{bucket}/k", (405, "MethodNotAllowed")),
        ("DELETE", "/", (405, "MethodNotAllowed")),
        ("GET", "/{bucket}?max-keys=-1", (400, "InvalidArgument")),
        ("GET", "/{bucket}?list-type=3", (400, "InvalidArgument")),
        ("GET", "/{bucket}?encoding-type=x", (400, "InvalidArgument")),
        ("GET", "/{bucket}/%FF", (400, "InvalidURI")),
        ("GET", "/UPPER_case/k", (404, "NoSuchBucket")),
        ("PUT", "/{bucket}/%00", (400, "InvalidArgument")),
        ("PUT", "/{bucket}/_lakefs/x", (403, "AccessDenied")),
        ("PUT", "/{bucket}/" + "k" * 1_025, (400, "KeyTooLongError")),
        ("GET", "/{bucket}/k?versionId=7", (404, "NoSuchVersion")),
        ("PUT", "/{bucket}/k?partNumber=1", (400, "InvalidArgument")),
    ],
)
def test_what_is_not_served_says_so(
    gateway: Any, bucket: str, error: Error, method: str, path: str, expected: tuple[int, str]
) -> None:
    """Operations and values that are not served have S3's own error, and are never taken for others."""
    assert error(gateway.send(method, path.format(bucket=bucket))) == expected
    assert keys_of(gateway, bucket) == []


@pytest.mark.parametrize(
    "header",
    [
        "x-amz-write-offset-bytes",
        "x-amz-server-side-encryption-customer-key",
        "x-amz-server-side-encryption",
        "x-amz-object-lock-mode",
        "x-amz-tagging",
        "x-amz-website-redirect-location",
        "x-amz-checksum-sha512",
    ],
)
def test_headers_that_ask_for_more_are_not_ignored(gateway: Any, bucket: str, error: Error, header: str) -> None:
    """An append, encryption, a lock, tags: plain bytes instead would lose what is there, or promise falsely."""
    gateway.s3().put_object(Bucket=bucket, Key="k", Body=b"stays")
    reply = gateway.send("PUT", f"/{bucket}/k", body=b"new", **{header: "5"})
    assert gateway.s3().get_object(Bucket=bucket, Key="k")["Body"].read() == b"stays"
    assert error(reply) == (501, "NotImplemented")


def test_metadata_decides_no_header_of_a_reply(gateway: Any, bucket: str) -> None:
    """Metadata that comes over REST may have any key: no reply is framed, sent to a browser or broken by it."""
    repository, _, branch = bucket.partition(".")
    s3 = gateway.s3()
    s3.put_object(Bucket=bucket, Key="k", Body=b"hello", CacheControl="no-cache")
    names = (
        "transfer-encoding",
        "set-cookie",
        "content-security-policy",
        "content-type",
        "bad name\n",
        "connection",
        "",
    )
    metadata = {f"::s3::{name}": "x" for name in names} | {"::s3::cache-control": "max-age=1\r\nset-cookie: a"}
    place = f"/repositories/{repository}/branches/{branch}/objects/stat/user_metadata"
    assert gateway.rest("PUT", place, {"set": metadata}, path="k").status in (201, 204)
    reply = gateway.send("GET", f"/{bucket}/k")
    assert (reply.status, reply.data) == (200, b"hello")
    shown = {name.lower(): value for name, value in reply.headers.items()}
    assert not {"transfer-encoding", "set-cookie", "connection", "bad name"} & set(shown)
    assert shown["content-security-policy"] == "default-src 'none'; sandbox"
    assert shown["content-type"] == "binary/octet-stream"
    assert shown["cache-control"] == "max-age=1set-cookie: a"


def test_without_an_s3_key_there_is_no_gateway(tmp_path: Path) -> None:
    """A server without the option answers a signed request as every unknown route, and REST as before."""
    with start_server(tmp_path / "lake", options=ServerOptions(durable=False)) as running:
        headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=a"}
        reply = urllib3.request("GET", running.started.endpoint + "/analytics/k", headers=headers, retries=False)
        assert (reply.status, reply.headers["content-type"]) == (404, "application/json")
    with pytest.raises(InvalidRequest, match="needs its key"):
        start_server(tmp_path / "lake", options=ServerOptions(s3_domains=("s3.localhost",)))


def test_access_keys_outlive_a_restart_and_need_their_s3_key(
    start: Callable[..., Any], code: Code, tmp_path: Path
) -> None:
    """With the same key file a secret signs after a restart; with another one only the REST interface knows it."""
    first = start()
    first.s3().put_object(Bucket="analytics", Key="main/k", Body=b"x")
    first.running.stop()
    for name, expected in (("s3.key", ""), ("other.key", "InvalidAccessKeyId")):
        options = ServerOptions(durable=False, s3_key_file=str(tmp_path / name))
        with start_server(tmp_path / "lake", options=options) as running:
            again = replace(first, running=running)
            assert again.rest("GET", "/repositories").status == 200
            if expected:
                assert code(lambda again=again: again.s3().list_buckets()) == expected
                rotated = running.site.keys.rotate(first.access_key)
                new = replace(again, access_key=rotated.key.id, secret=rotated.secret)
                assert new.s3().get_object(Bucket="analytics", Key="main/k")["Body"].read() == b"x"
            else:
                assert again.s3().list_buckets()["Buckets"]
    (tmp_path / "s3.key").chmod(0o644)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        start_server(tmp_path / "lake", options=ServerOptions(s3_key_file=str(tmp_path / "s3.key")))


def test_a_small_upload_that_ends_after_its_key_is_refused(gateway: Any, bucket: str) -> None:
    """What is small enough to be stored in one step was begun with a key that was revoked before its end came."""
    writer = gateway.with_key("write")
    url = urlsplit(writer.s3().generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "late"}))
    with socket.create_connection((url.hostname, url.port), timeout=60) as line:
        head = (f"PUT {url.path}?{url.query} HTTP/1.1", f"Host: {url.netloc}", "Content-Length: 4", "Connection: close")
        line.sendall("".join(text + "\r\n" for text in (*head, "")).encode() + b"12")
        wait_until(lambda: gateway.running.site.serving.running == 1)
        gateway.running.site.keys.revoke(writer.access_key)
        line.sendall(b"34")
        reply = b""
        while more := line.recv(65_536):
            reply += more
    assert b" 403 " in reply.splitlines()[0]
    assert "Contents" not in gateway.s3().list_objects(Bucket=bucket)
