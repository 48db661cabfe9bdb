"""One process that serves repositories: from settings to a site that answers, and its end.

Owns: what is opened, and in which order. At the end, running requests finish first; then the logs are written and the
lease on the records is released (`lakebed.http.process`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from lakebed.errors import Fenced
from lakebed.http.memory import release_unused, save_memory
from lakebed.http.process import RunningServer, serve
from lakebed.http.serving import Serving
from lakebed.http.signing import Signer
from lakebed.key_value.port import KeyValue
from lakebed.lake.lake import Lake
from lakebed.lsm.cache import block_cache
from lakebed.lsm.file_reader import unload_mapped
from lakebed.objects.open import open_store
from lakebed.objects.reserve import freeing_space
from lakebed.repo.model.options import Access
from lakebed.repo.opening import open_repositories
from lakebed.repo.repositories import Repositories, local_catalog
from lakebed.repo.transport.transport import context_of
from lakebed.server.app import build, description
from lakebed.server.audit import AuditLog
from lakebed.server.encoded_rows import EncodedRows
from lakebed.server.import_runner import ImportRunner
from lakebed.server.keys import AccessKeys, NewAccessKey, Principal
from lakebed.server.paimon.catalog import PaimonCatalog
from lakebed.server.reference_tables import ReferenceTables
from lakebed.server.settings import ServerSettings, Started
from lakebed.server.site import RepositoryCall, RepositorySite, is_on_disk

NAME: Final = "lakebed serve"
"""Prefix of messages on standard error."""


def open_records(settings: ServerSettings) -> Repositories:
    """Return the repositories that are served. Raises as `lakebed.repo.open_all`.

    Becoming their owner writes a little, for which a full disk has the reserve: objects can then be read, and freed.
    """
    options = settings.options
    with freeing_space():
        return open_repositories(
            settings.storage_url,
            metadata=options.metadata,
            options=replace(options.repository_options, import_from=tuple(options.import_from), run_actions=True),
            storage_options=options.storage_options,
            durable=options.durable,
            access=Access(take_over=options.take_over, endpoint=settings.endpoint),
        )


def first_key(repositories: Repositories, settings: ServerSettings) -> NewAccessKey | None:
    """Create the first access key when there is none yet; else None."""
    return _access_keys(repositories, settings).create_first()


def _access_keys(repositories: Repositories, settings: ServerSettings) -> AccessKeys:
    catalog = local_catalog(repositories)
    return AccessKeys(
        catalog.key_value,
        environment=catalog.environment,
        options=settings.options,
        secret_key=settings.s3_key,
    )


def open_site(settings: ServerSettings, repositories: Repositories) -> RepositorySite:
    """Return a site over open repositories, which it closes; imports that were interrupted are resumed."""
    options, catalog = settings.options, local_catalog(repositories)
    environment, records = catalog.environment, catalog.key_value
    keys = _access_keys(repositories, settings)
    serving = Serving.open(
        NAME,
        options=options,
        environment=environment,
        authority=settings.endpoint.partition("://")[2],
        reads_inline=is_on_disk(repositories.url) and records.is_local,
        access_log=settings.access_log,
    )
    serving.release = _release
    serving.lost = partial(_lost, records, url=repositories.url)
    imports = ImportRunner(
        environment=environment, storage_options=options.storage_options, log_problem=serving.log_problem
    )

    def open_lake() -> Lake:
        store = open_store(
            repositories.url,
            storage_options=options.storage_options,
            environment=environment,
            durable=options.durable,
        )
        return Lake.open(store, environment=environment, storage_options=options.storage_options)

    if settings.resume_imports:
        imports.resume(context_of(repository) for repository in repositories.list())
    return RepositorySite(
        serving=serving,
        options=options,
        repositories=repositories,
        keys=keys,
        audit_log=AuditLog(records, environment=environment, lines_max=options.audit_lines_max),
        signer=Signer(settings.signing_key, clock=environment.clock),
        imports=imports,
        paimon=PaimonCatalog(
            open_lake,
            records=records,
            url=repositories.url,
            references=ReferenceTables(repositories, speaks_s3=keys.has_signers),
        ),
        description=description,
        encoded_rows=EncodedRows(options.listing_cache_bytes_max),
    )


def _release() -> None:
    unload_mapped(block_cache())
    release_unused()


def _lost(records: KeyValue, *, url: str) -> Fenced | None:
    """Return the error that ends a server after another process has taken over its records; None: none has."""
    if records.lost is None:
        return None
    return Fenced(
        f"The repositories at {url} were taken over by another process, so this server ends; what it acknowledged is "
        "there. Ask the process that owns them now, or start this one again when that has ended.",
        **records.lost.facts,
    )


def serve_one(
    settings: ServerSettings, listener: socket.socket, *, started: Callable[[Started], None], first_setup: bool = True
) -> int:
    """Serve in this process until a signal ends it; the exit code.

    Args:
        listener: bound; closed at the end.
        started: called once the server answers.
        first_setup: create the first access key when there is none.

    Raises:
        Conflict: kind ``owned``; and otherwise as `lakebed.repo.open_all`.
        Fenced: another process has taken over the records, so this one has ended.
    """
    save_memory()
    repositories = open_records(settings)
    try:
        report = startup_report(settings, first_key(repositories, settings) if first_setup else None)
        site = open_site(settings, repositories)
    except BaseException:
        repositories.close()
        raise
    serve(build(site), site, listener, ready=lambda: started(report))
    return 0


def startup_report(settings: ServerSettings, created: NewAccessKey | None) -> Started:
    """Return what to report once the server answers."""
    return Started(
        settings.endpoint,
        settings.storage_url,
        access_key=None if created is None else created.key.id,
        secret=None if created is None else created.secret,
        speaks_s3=settings.s3_key is not None,
    )


class Running(RunningServer[Principal, RepositoryCall]):
    """A server of repositories in a thread; `started` is where it answers, and the key of a first start."""

    site: RepositorySite

    def __init__(self, settings: ServerSettings, listener: socket.socket) -> None:
        repositories = open_records(settings)
        self.started = startup_report(settings, first_key(repositories, settings))
        site = open_site(settings, repositories)
        super().__init__(build(site), site, listener)
