"""The service itself: health, configuration, metrics, and the OpenAPI description."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

import lakebed
from lakebed.errors import InvalidRequest
from lakebed.http.declaration import Routes
from lakebed.metrics import render
from lakebed.objects.path import parse_url
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.repositories import local_catalog
from lakebed.server.bodies import (
    AuthCapabilities,
    Config,
    GarbageCollectionConfig,
    Setup,
    SetupState,
    StatisticsEvents,
    StorageConfig,
    VersionConfig,
)
from lakebed.server.site import RepositoryCall
from lakebed.server.user_bodies import CommPrefsInput, InstallationUsageReport

SERVICE: Final = Routes[RepositoryCall]("service")
ROOT_SERVICE: Final = Routes[RepositoryCall]("service")

INTERFACE_VERSION: Final = "1.84.0"
"""Version of the interface. Clients compare it with the version that they need, at least 1.3.1."""

_BLOCKSTORES: Final = {"file": "local", "memory": "mem", "s3": "s3", "gs": "gs", "az": "azure"}


@SERVICE.add("GET", "/healthcheck", "healthCheck", needs=None)
async def health_check(call: RepositoryCall) -> None:
    """Check that the server answers."""


@ROOT_SERVICE.add("GET", "/healthcheck", "health", needs=None)
async def health(call: RepositoryCall) -> dict[str, str]:
    """Check that the server answers, and get its version."""
    return {"status": "ok", "version": lakebed.__version__}


@SERVICE.add("GET", "/config", "getConfig", needs="read")
async def get_config(call: RepositoryCall) -> Config:
    """Get what clients need to know of the server and its storage."""
    return Config(VersionConfig(INTERFACE_VERSION), _storage_config(call), [])


@SERVICE.add("GET", "/config/version", "getLakeFSVersion", tag="config", needs="read")
async def get_version(call: RepositoryCall) -> VersionConfig:
    """Get the version of the interface."""
    return VersionConfig(INTERFACE_VERSION)


@SERVICE.add("GET", "/config/storage", "getStorageConfig", tag="config", needs="read")
async def get_storage(call: RepositoryCall) -> StorageConfig:
    """Get what clients may do with the storage themselves."""
    return _storage_config(call)


@SERVICE.add("GET", "/config/garbage-collection", "getGarbageCollectionConfig", tag="config", needs="read")
async def get_garbage_collection(call: RepositoryCall) -> GarbageCollectionConfig:
    """Get how old an object must be to be collected."""
    return GarbageCollectionConfig(round(CollectionOptions().grace.total_seconds()))


@SERVICE.add("GET", "/setup_lakefs", "getSetupState", tag="config", needs=None)
async def get_setup_state(call: RepositoryCall) -> SetupState:
    """Check whether there are credentials: the first start made the first ones."""
    return SetupState("initialized")


@SERVICE.add("POST", "/setup_lakefs", "setup", tag="config", needs=None, gives={}, statuses={"already_set_up": 409})
async def set_up(call: RepositoryCall, _: Setup) -> Response:
    """Refuse to make first credentials, which the first start printed."""
    raise InvalidRequest(
        "The server was set up at its first start, which printed an access key: make others with `lakebed key create`.",
        kind="already_set_up",
    )


@SERVICE.add(
    "POST", "/setup_comm_prefs", "setupCommPrefs", tag="config", needs=None, gives={}, statuses={"already_set_up": 409}
)
async def set_preferences(call: RepositoryCall, _: CommPrefsInput) -> Response:
    """Refuse to note whom to write to: the server sends no messages."""
    raise InvalidRequest("The server sends no messages to people: there is nothing to set.", kind="already_set_up")


@SERVICE.add("GET", "/usage-report/summary", "getUsageReportSummary", tag="service", needs="read")
async def get_usage(call: RepositoryCall) -> InstallationUsageReport:
    """Get the id of the installation. Requests are not counted by month: `/metrics` counts them since the start."""
    record = await call.quick(local_catalog(call.site.repositories).record_of_catalog)
    return InstallationUsageReport(record.id, [])


@SERVICE.add("GET", "/auth/capabilities", "getAuthCapabilities", tag="auth", needs=None)
async def get_auth_capabilities(call: RepositoryCall) -> AuthCapabilities:
    """Get what is done by e-mail: nothing."""
    return AuthCapabilities()


@SERVICE.add("POST", "/statistics", "postStatsEvents", needs="read")
async def post_statistics(call: RepositoryCall, _: StatisticsEvents) -> None:
    """Accept what a client counted. It is not kept."""


def _storage_config(call: RepositoryCall) -> StorageConfig:
    root = parse_url(call.site.repositories.url)
    is_local = root.scheme in ("file", "memory")
    return StorageConfig(
        blockstore_type=_BLOCKSTORES[root.scheme],
        blockstore_namespace_example="local://my-repository" if is_local else f"{root}/my-repository",
        blockstore_namespace_validity_regex="^local://" if is_local else f"^(local://|{root.scheme}://)",
        default_namespace_prefix="local://" if is_local else str(root),
        pre_sign_support=call.site.signs,
        pre_sign_support_ui=False,
        import_support=True,
        import_validity_regex="^(local|file|memory)://" if is_local else f"^{root.scheme}://",
    )


@ROOT_SERVICE.add("GET", "/metrics", "metrics", needs=None, gives={200: str})
async def metrics(call: RepositoryCall) -> Response:
    """Get counters and latencies in Prometheus format; series with names need a key for all repositories."""
    principal = await call.optional_principal()
    with_names = principal is not None and principal.sees_all
    return Response(render(with_names=with_names), media_type="text/plain; version=0.0.4; charset=utf-8")


@ROOT_SERVICE.add("GET", "/openapi.json", "openapi", needs=None)
async def openapi(call: RepositoryCall) -> dict[str, Any]:
    """Get the OpenAPI description."""
    return call.site.description()
