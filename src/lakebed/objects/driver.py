"""The interface of a kind of object store below the port: the `Driver` protocol.

A driver makes single requests and nothing else: no counting, no retries, no views of sub-folders. `AccountedStore` adds
these to any driver, and callers use only that. Paths are already checked, and are relative to the driver's root.

To add a kind of object store: implement `Driver`, choose it by its scheme in `open._driver`, add the scheme to
`path`, and run the contract of the port (the fixture `opened` in ``tests/conftest.py``) over it.

Invariants that every driver keeps: those of `lakebed.objects.port`, for one request. Errors are `lakebed.errors` only.
`Unavailable` means that the request certainly had no effect or may be repeated; `OutcomeUnknown` means that a
create-only put may have had its effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from typing_extensions import Buffer

from lakebed.objects.port import ByteRange, Listing, ObjectMeta, Upload


class DriverUpload(Upload, Protocol):
    """An upload that knows how many requests it has made."""

    @property
    def request_count(self) -> int:
        """Requests made so far, as far as the driver knows."""


class Driver(Protocol):
    """Single requests to one root."""

    @property
    def root_url(self) -> str:
        """URL of the root, without credentials and final slash."""

    @property
    def metrics_label(self) -> str:
        """The store's label in exported metrics: scheme and bucket, never a path (there would be too many)."""

    @property
    def is_remote(self) -> bool:
        """Whether requests use a network. Then concurrency and bytes in flight are bounded."""

    @property
    def delete_batch_count_max(self) -> int:
        """Most paths that one DELETE request takes."""

    @property
    def range_gap_bytes_max(self) -> int:
        """The largest gap between two ranges that is read too, because another request would take longer."""

    def require_folder(self, folder: str, *, with_descriptor: bool) -> Driver:
        """Return the driver for `ObjectStore.require_folder` of a folder; without folders, the driver itself."""
        return self

    def release_folder(self) -> None:
        """See `ObjectStore.release_folder`."""
        return

    def get(self, path: str, byte_range: ByteRange | None) -> Buffer:
        """Send one GET."""

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Send one GET for each of `ranges`, which are already coalesced."""

    def get_resident(self, path: str, byte_range: ByteRange | None) -> Buffer | None:
        """Send one GET that waits for no disk and no network; None if it would have to wait."""
        return None

    def map(self, path: str) -> Buffer | None:
        """Map one object into memory without reading it; None if that is not possible."""
        return None

    def head(self, path: str) -> ObjectMeta:
        """Send one HEAD."""

    def put(self, path: str, body: memoryview, *, create_only: bool, durable: bool) -> None:
        """Send one PUT of a one-dimensional byte view."""

    def put_each(self, objects: Sequence[tuple[str, memoryview]], *, durable: bool) -> None:
        """Create-only PUTs; with `durable` they are made durable together."""
        for path, body in objects:
            self.put(path, body, create_only=True, durable=False)
        if durable:
            self.sync([path for path, _ in objects])

    def open_upload(self, path: str, *, create_only: bool, durable: bool) -> DriverUpload:
        """Begin an object of unknown size. It replaces an existing one; with `create_only` it fails instead."""

    def list_pages(self, prefix: str, start_after: str | None, page_count: int) -> Iterator[Sequence[ObjectMeta]]:
        """List the objects below a folder in order, one LIST for each page. The last page may be empty."""

    def path_pages(self, prefix: str, start_after: str | None, page_count: int) -> Iterator[Sequence[str]]:
        """List the paths of `list_pages`, possibly also of files that were just deleted."""
        return ([meta.path for meta in page] for page in self.list_pages(prefix, start_after, page_count))

    def list_level(self, prefix: str) -> Listing:
        """List one level below a folder, in order."""

    def delete(self, paths: Sequence[str], *, durable: bool) -> None:
        """Send one DELETE of at most `delete_batch_count_max` paths. Missing objects are not an error."""

    def copy(self, source: str, target: str, *, create_only: bool, durable: bool) -> None:
        """Send one COPY that replaces its target. Only local stores get `create_only`, remote ones never."""

    def sync(self, paths: Sequence[str]) -> None:
        """Make objects that others wrote durable; a no-op if every write of the store is durable."""

    def url(self, path: str) -> str:
        """Return the URL of an object, for another engine."""

    def signed_url(self, path: str, *, expires_in_s: int, method: str) -> str:
        """Return a URL with its own permission."""
