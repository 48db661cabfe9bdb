"""The object-storage port: one small protocol, its drivers, request counts, and the numbered log of commits."""

from lakebed.objects.limits import StoreLimits
from lakebed.objects.open import open_store
from lakebed.objects.port import ByteRange, Listing, ObjectMeta, ObjectStore, RequestCounts

__all__ = ["ByteRange", "Listing", "ObjectMeta", "ObjectStore", "RequestCounts", "StoreLimits", "open_store"]
