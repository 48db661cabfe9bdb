"""A gateway on a free loopback port, and unmodified boto3 in front of it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
import urllib3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server


@dataclass
class Gateway:
    """A server with one access key."""

    running: Running
    access_key: str
    secret: str
    clients: list[Any] = field(default_factory=list)
    """All that were made, to be closed: of one that is not, Python finds the open sockets later, in another test."""

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return self.running.started.endpoint

    def s3(self, *, region: str = "us-east-1", **options: Any) -> Any:
        """A client of S3."""
        config = Config(
            signature_version="s3v4",
            retries={"max_attempts": 1},
            s3={"addressing_style": options.pop("style", "path")},
            **options,
        )
        return self.client(config, region=region)

    def client(self, config: Config, *, region: str = "us-east-1", secret: str = "") -> Any:
        """A client of S3, as configured."""
        made = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=secret or self.secret,
            region_name=region,
            config=config,
        )
        self.clients.append(made)
        return made

    def stop(self) -> None:
        """End the clients, and the server."""
        for client in self.clients:
            client.close()
        self.running.stop()

    def rest(self, method: str, place: str, body: Any = None, **query: str) -> urllib3.BaseHTTPResponse:
        """A request of the REST interface."""
        headers = urllib3.make_headers(basic_auth=f"{self.access_key}:{self.secret}")
        options: Any = {"body": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
        url = f"{self.endpoint}/api/v1{place}"
        if query:
            url += "?" + "&".join(f"{name}={value}" for name, value in query.items())
        return urllib3.request(method, url, headers=headers, retries=False, **options)

    def sign(self, method: str, path: str, *, body: bytes = b"", **headers: str) -> dict[str, str]:
        """The headers of a signed request."""
        request = AWSRequest(method, self.endpoint + path, data=body, headers=headers)
        S3SigV4Auth(Credentials(self.access_key, self.secret), "s3", "us-east-1").add_auth(request)
        return dict(request.headers.items())

    def send(self, method: str, path: str, *, body: bytes = b"", **headers: str) -> urllib3.BaseHTTPResponse:
        """A signed request."""
        signed = self.sign(method, path, body=body, **headers)
        return urllib3.request(
            method, self.endpoint + path, body=body or None, headers=signed, retries=False, redirect=False
        )

    def with_key(self, role: Any, *repositories: str) -> Gateway:
        """The same with a new access key."""
        made = self.running.site.keys.create(role=role, repositories=repositories or None)
        return replace(self, access_key=made.key.id, secret=made.secret)


def make_gateway(folder: Path, **options: Any) -> Gateway:
    """Start a server with a repository ``analytics``."""
    settings = ServerOptions(**{"durable": False, "s3_key_file": str(folder / "s3.key"), **options})
    running = start_server(folder / "lake", options=settings)
    started = running.started
    assert started.access_key is not None
    assert started.secret is not None
    gateway = Gateway(running, started.access_key, started.secret)
    made = gateway.rest("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://analytics"})
    assert made.status == 201, made.data
    return gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway for the tests of a module."""
    made = make_gateway(tmp_path_factory.mktemp("gateway"), s3_domains=("s3.localhost",))
    yield made
    made.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Start gateways on one folder."""
    gateways: list[Gateway] = []

    def begin(**options: Any) -> Gateway:
        gateways.append(make_gateway(tmp_path, **options))
        return gateways[-1]

    yield begin
    for gateway in gateways:
        gateway.stop()


@pytest.fixture
def bucket(gateway: Gateway, request: pytest.FixtureRequest) -> str:
    """An empty branch as a bucket, for one test."""
    name = f"analytics.{request.node.originalname[:60]}-{zlib.crc32(request.node.name.encode()):08x}"
    gateway.s3().create_bucket(Bucket=name)
    return name


def code_of(call: Callable[[], Any]) -> str:
    """The code of the error that a call of boto3 ends with."""
    with pytest.raises(ClientError) as failed:
        call()
    return str(failed.value.response["Error"]["Code"])


def error_of(reply: urllib3.BaseHTTPResponse) -> tuple[int, str]:
    """Status and code of an error of S3."""
    root = ElementTree.fromstring(reply.data)
    assert root.tag == "Error", reply.data
    return reply.status, root.findtext("Code") or ""


@pytest.fixture(scope="session")
def code() -> Callable[[Callable[[], Any]], str]:
    """`code_of`."""
    return code_of


@pytest.fixture(scope="session")
def error() -> Callable[[urllib3.BaseHTTPResponse], tuple[int, str]]:
    """`error_of`."""
    return error_of
