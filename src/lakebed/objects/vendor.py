"""S3, Google Cloud Storage and Azure, through obstore. This is the only module that imports obstore.

Owns: settings passed to the vendor's client, and the translation of its errors.

Invariants: the client itself retries nothing except the parts of a stream, so that every request is counted and waits
use the injected clock. No secret gets into an error: the vendor's text is searched for known signs and not quoted, and
its secrets are masked in the cause.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store
from typing_extensions import Buffer

from lakebed.errors import InternalError, InvalidRequest, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.objects.driver import Driver
from lakebed.objects.limits import StoreLimits
from lakebed.objects.memory import absent, exists_error
from lakebed.objects.path import StoreUrl
from lakebed.objects.port import ByteRange, Listing, ObjectMeta

R = TypeVar("R")

_DELETE_BATCH_COUNT_MAX: Final = {"s3": 1000, "gs": 1, "az": 256}
"""Most objects that one request deletes. This client has no batches for Google; Azure's take 256."""

_PART_COUNT_MAX: Final = {"s3": 10_000, "gs": 10_000, "az": 50_000}
_FRAME_REQUEST_COUNT: Final = {"s3": 2, "gs": 2, "az": 1}
_UPLOAD_CONCURRENCY_MAX: Final = 2

_NO_PLACE: Final = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist|InvalidBucketName")
_NO_RIGHT: Final = re.compile(
    r"InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|ExpiredToken|InvalidToken|AuthenticationFailed|"
    r"AuthorizationFailure|status: 40[13]|40[13] (Unauthorized|Forbidden)|Forbidden|Unauthorized|"
    r"[Nn]o .*credentials|credential|169\.254\.169\.254|metadata\.google"
)
_NOT_SENT: Final = re.compile(r"tcp connect|dns error|Connect\b|error trying to connect|SlowDown|status: 429|Too Many")
_BAD_RANGE: Final = re.compile(
    r"InvalidRange|status: 416|\b416 (Range|Requested)|Requested range|OutOfRange|out of range|StartTooLarge|"
    r"start too large"
)

_NAMES: Final = re.compile(
    r"https?://\S+|path: \".*\"|(?s:parsing Path \".*\")|"
    r"(at location|for path) (?s:.*?)(?= not found| already exists|: )"
)
_UNTAKEN: Final = re.compile(r"[\x00-\x1f\x7f]")
"""Characters that the client does not accept in an object's path."""
_TIMES: Final = re.compile(r"\b\d+(\.\d+)?(n|µ|u|m)?s\b")
_SECRET_NAME: Final = re.compile(
    r"secret|token|sas|password|(account|access|master|shared|customer)_key\Z", re.IGNORECASE
)
_SIGNATURE: Final = re.compile(r"\b(sig|X-Amz-Signature|X-Amz-Security-Token|X-Goog-Signature)=[^&\s]+")
_VENDOR: Final = ("AWS_", "AZURE_", "GOOGLE_")
_ENDPOINT_VARIABLES: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": (),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_EXAMPLES: Final = {
    "s3": "aws_access_key_id, aws_secret_access_key, aws_region, aws_endpoint",
    "gs": "google_service_account, google_application_credentials",
    "az": "azure_storage_account_name, azure_storage_account_key",
}


@dataclass(frozen=True, slots=True)
class _Shape:
    """The limits of a vendor's uploads in parts."""

    part_bytes: int
    part_count_max: int
    frame_request_count: int
    """Number of requests in addition to the parts: those that begin and end an upload."""


class _Threads:
    """The client's threads. The first request starts them, and a forked process lacks them."""

    are_started = False
    are_lost = False


def _lose_threads() -> None:
    _Threads.are_lost = _Threads.are_lost or _Threads.are_started


os.register_at_fork(after_in_child=_lose_threads)


class _VendorUpload:
    """A multipart upload by the client's writer, which itself retries a failed part: its bytes are not kept here."""

    def __init__(
        self,
        ask: Callable[[Callable[[], Any]], Any],
        open_writer: Callable[[], Any],
        shape: _Shape,
        *,
        check_free: Callable[[], None] | None = None,
    ) -> None:
        self._ask = ask
        self._check_free = check_free
        self._writer = ask(open_writer)
        self._shape = shape
        self._size_bytes = 0

    @property
    def request_count(self) -> int:
        parts = -(-self._size_bytes // self._shape.part_bytes)
        return parts + self._shape.frame_request_count + (self._check_free is not None)

    def write(self, part: memoryview) -> None:
        shape = self._shape
        if self._size_bytes + len(part) > shape.part_bytes * shape.part_count_max:
            raise InvalidRequest(
                f"a stream is larger than {shape.part_count_max} parts of {shape.part_bytes} bytes, which is what the "
                "store takes: raise the limit upload_part_bytes",
                kind="stream_too_large",
            )
        copied_part = bytes(part)  # the writer keeps its input until it is sent, and the caller may reuse the part
        self._ask(lambda: self._writer.write(copied_part))
        self._size_bytes += len(part)

    def finish(self) -> None:
        if self._check_free is not None:
            self._check_free()
        self._ask(self._writer.close)

    def abandon(self) -> None:
        # Leaving the writer's block with an error aborts the upload, so that its parts are deleted.
        self._ask(lambda: self._writer.__exit__(Unavailable, Unavailable("abandoned"), None))


class VendorDriver(Driver):
    """`Driver` of one bucket or container, below a prefix."""

    is_remote = True
    range_gap_bytes_max = 1 << 30

    def __init__(self, url: StoreUrl, options: Mapping[str, str], limits: StoreLimits) -> None:
        self._url = url
        self._prefix = url.prefix + "/" if url.prefix else ""
        secrets = [str(value) for name, value in options.items() if _SECRET_NAME.search(name)]
        ambient = [
            value for name, value in os.environ.items() if name.startswith(_VENDOR) and _SECRET_NAME.search(name)
        ]
        self._secrets = sorted({secret for secret in secrets + ambient if secret}, key=len, reverse=True)
        self._store = _client(url, dict(options), limits, _retries(limits, 0))
        # Failed parts are no longer available here, so only this client retries by itself.
        self._uploads = _client(url, dict(options), limits, _retries(limits, limits.retry_count_max))
        self._shape = _Shape(limits.upload_part_bytes, _PART_COUNT_MAX[url.scheme], _FRAME_REQUEST_COUNT[url.scheme])

    @property
    def delete_batch_count_max(self) -> int:
        return _DELETE_BATCH_COUNT_MAX[self._url.scheme]

    @property
    def root_url(self) -> str:
        """Return ``s3://bucket/prefix``."""
        return str(self._url)

    @property
    def metrics_label(self) -> str:
        return f"{self._url.scheme}://{self._url.place}"

    def get(self, path: str, byte_range: ByteRange | None) -> Buffer:
        """Send one GET. The body is not copied."""
        full_path = self._prefix + path
        if byte_range is None:
            return self._ask(path, lambda: obstore.get(self._store, full_path).bytes())
        start, end = byte_range
        return self._ask(path, lambda: obstore.get_range(self._store, full_path, start=start, end=end))

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Request all ranges concurrently."""
        starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
        full_path = self._prefix + path
        return list(
            self._ask(path, lambda: obstore.get_ranges(self._store, full_path, starts=starts, ends=ends, coalesce=0))
        )

    def head(self, path: str) -> ObjectMeta:
        return self._meta(self._ask(path, lambda: obstore.head(self._store, self._prefix + path)))

    def put(self, path: str, body: memoryview, *, create_only: bool, durable: bool) -> None:
        """Send one PUT, whatever the size. These stores answer once an object is durable."""
        mode: Any = "create" if create_only else "overwrite"
        self._ask(
            path,
            lambda: obstore.put(self._store, self._prefix + path, bytes(body), mode=mode, use_multipart=False),
            unclear=create_only,
        )

    def open_upload(self, path: str, *, create_only: bool, durable: bool) -> _VendorUpload:
        """Begin a multipart upload, or the vendor's equivalent. A part is sent when the next one begins.

        The client has no condition for the end of an upload, so a create-only upload checks the path before it ends.
        """
        return _VendorUpload(
            lambda request: self._ask(path, request),
            lambda: obstore.open_writer(
                self._uploads,
                self._prefix + path,
                buffer_size=self._shape.part_bytes,
                max_concurrency=_UPLOAD_CONCURRENCY_MAX,
            ),
            self._shape,
            check_free=partial(self._check_free, path) if create_only else None,
        )

    def _check_free(self, path: str) -> None:
        try:
            self.head(path)
        except NotFound as missing:
            if missing.kind != "object_not_found":
                raise
        else:
            raise exists_error(path, self.root_url)

    def list_pages(self, prefix: str, start_after: str | None, page_count: int) -> Iterator[Sequence[ObjectMeta]]:
        folder = (self._prefix + prefix).removesuffix("/") or None
        offset = None if start_after is None else self._prefix + start_after
        stream = obstore.list(self._store, folder, offset=offset, chunk_size=page_count)
        while True:
            page = self._ask(prefix, lambda: next(stream, None))
            yield [] if page is None else [self._meta(meta) for meta in page]
            if page is None:
                return

    def list_level(self, prefix: str) -> Listing:
        folder = (self._prefix + prefix).removesuffix("/") or None
        listing = self._ask(prefix, lambda: obstore.list_with_delimiter(self._store, folder))
        skip = len(self._prefix)
        return Listing(
            tuple(sorted((self._meta(meta) for meta in listing["objects"]), key=lambda meta: meta.path)),
            tuple(sorted(name[skip:].removesuffix("/") for name in listing["common_prefixes"])),
        )

    def delete(self, paths: Sequence[str], *, durable: bool) -> None:
        """Delete one batch. If the vendor reports a missing object as an error, delete the others one by one.

        Paths that the client does not accept are skipped, because it cannot have created such objects.
        """
        paths = [path for path in paths if _UNTAKEN.search(path) is None]
        if not paths:
            return
        try:
            self._ask(paths[0], lambda: obstore.delete(self._store, [self._prefix + path for path in paths]))
        except NotFound as missing:
            if missing.kind != "object_not_found":
                raise
            for path in paths:
                self._delete_one(path)

    def _delete_one(self, path: str) -> None:
        try:
            self._ask(path, lambda: obstore.delete(self._store, self._prefix + path))
        except NotFound as missing:
            if missing.kind != "object_not_found":
                raise

    def copy(self, source: str, target: str, *, create_only: bool, durable: bool) -> None:
        if create_only:
            raise InternalError("a bucket has no create-only copy: its bytes are put")
        self._ask(source, lambda: obstore.copy(self._store, self._prefix + source, self._prefix + target))

    def sync(self, paths: Sequence[str]) -> None:
        """Do nothing: these stores answer a write once it is durable."""

    def url(self, path: str) -> str:
        """Return ``s3://bucket/prefix/path``."""
        return f"{self.root_url}/{path}"

    def signed_url(self, path: str, *, expires_in_s: int, method: str) -> str:
        verb: Any = method
        lifetime = timedelta(seconds=expires_in_s)
        return str(self._ask(path, lambda: obstore.sign(self._store, verb, self._prefix + path, lifetime)))

    def _meta(self, meta: Any) -> ObjectMeta:
        modified_ms = int(meta["last_modified"].timestamp() * 1000)
        return ObjectMeta(meta["path"][len(self._prefix) :], meta["size"], modified_ms, meta["e_tag"])

    def _ask(self, path: str, request: Callable[[], R], *, unclear: bool = False) -> R:
        if _Threads.are_lost:  # a request would wait forever
            raise InvalidRequest(
                f"This process was forked from one that had used a remote store, so it cannot reach {self.root_url}: "
                "start processes by multiprocessing's 'spawn' or 'forkserver'.",
                kind="forked_process",
            )
        _Threads.are_started = True
        try:
            return request()
        except (exceptions.BaseError, OSError, ValueError) as error:
            failure = error
        # Raised outside of the handler, so that an error with a secret is not kept as the context either.
        raise self._translate(failure, path, unclear=unclear) from self._redact(failure)

    def _redact(self, error: Exception) -> Exception:
        """Return the vendor's error itself, or a copy of it without the secrets in its text."""
        text = _SIGNATURE.sub(r"\1=...", str(error))
        for secret in self._secrets:
            text = text.replace(secret, "...")
        return error if text == str(error) else type(error)(text)

    def _translate(self, error: Exception, path: str, *, unclear: bool) -> LakebedError:
        """Translate a failed request to an error. The vendor's text stays in ``__cause__``, not in the message."""
        text = _TIMES.sub("", _NAMES.sub("", str(error)))  # a name or a duration may look like a known sign
        place = self.metrics_label
        if _NO_PLACE.search(text):
            return NotFound(
                f"there is no {place}: make the bucket first, or check its name and region", kind="bucket_not_found"
            )
        if isinstance(error, FileNotFoundError):
            return absent(path, self.root_url)
        if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
            return exists_error(path, self.root_url)
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError) or _NO_RIGHT.search(
            text
        ):
            return InvalidRequest(
                f"{place} refused access to {path or 'its listing'}: check the credentials (storage_options or the "
                "environment) and what they permit",
                kind="permission_denied",
                path=path,
            )
        if _BAD_RANGE.search(text):
            return InvalidRequest(f"a range of {path} starts past its end", kind="invalid_range", path=path)
        if isinstance(error, exceptions.InvalidPathError | ValueError):
            return InvalidRequest(f"{place} does not take the path {path!r}", kind="invalid_path", path=path)
        if isinstance(error, exceptions.NotSupportedError | NotImplementedError):
            return InvalidRequest(f"{place} cannot do what was asked of {path}", kind="unsupported", path=path)
        if isinstance(error, exceptions.JoinError):
            return InternalError(f"the client of {place} failed", path=path)
        if unclear and not _NOT_SENT.search(text):
            return OutcomeUnknown(f"{place} did not answer clearly whether it took {path}", path=path)
        return Unavailable(f"{place} did not answer a request for {path or 'its listing'}", path=path)


def _endpoints(url: StoreUrl, options: Mapping[str, Any]) -> list[str]:
    """Return every endpoint that the options or the environment name."""
    endpoints = [str(options[name]) for name in options if name.lower().removesuffix("_url").endswith("endpoint")]
    return endpoints or [os.environ[name] for name in _ENDPOINT_VARIABLES[url.scheme] if os.environ.get(name)]


def _retries(limits: StoreLimits, count_max: int) -> dict[str, Any]:
    """Return the client's retry settings, with our waits."""
    return {
        "max_retries": count_max,
        "retry_timeout": timedelta(milliseconds=limits.request_timeout_ms),
        "backoff": {
            "init_backoff": timedelta(milliseconds=max(1, limits.retry_wait_first_ms)),
            "max_backoff": timedelta(milliseconds=max(1, limits.retry_wait_max_ms)),
            "base": 2,
        },
    }


def _client(url: StoreUrl, options: dict[str, Any], limits: StoreLimits, retry_config: Any) -> Any:
    """Create the vendor's client, which reads environment variables for settings that `options` lack."""
    endpoints = _endpoints(url, options)
    for endpoint in endpoints:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(
                f"the endpoint given for {url} is not a URL such as https://host:port", kind="invalid_option"
            )
    client_options = {
        # A plain endpoint must be named explicitly. Without one, every connection is encrypted.
        "allow_http": any(endpoint.startswith("http://") for endpoint in endpoints),
        "timeout": timedelta(milliseconds=limits.request_timeout_ms),
        "connect_timeout": timedelta(milliseconds=limits.connect_timeout_ms),
    }
    kinds: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    try:
        return kinds[url.scheme](url.place, config=options, client_options=client_options, retry_config=retry_config)
    except exceptions.UnknownConfigurationKeyError as error:
        option = next((name for name in sorted(options) if f"'{name}'" in str(error)), "given")
        raise InvalidRequest(
            f"{url} has no storage option {option}: use the names of its vendor, such as {_EXAMPLES[url.scheme]}",
            kind="invalid_option",
            option=option,
        ) from error
    except (exceptions.BaseError, ValueError) as error:
        raise InvalidRequest(
            f"{url} cannot be opened with these storage options and environment variables: one is missing or malformed",
            kind="invalid_option",
        ) from error
