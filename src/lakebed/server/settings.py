"""What a server is told when it starts, and what it says when it answers. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakebed.repo.options import RepositoryOptions
from lakebed.server.options import ServerOptions

__all__ = ["ServerSettings", "Started"]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything that a serving process needs, so that it can be handed to one. It holds no access key.

    Attributes:
        storage_url: of the storage.
        metadata: where the records are; None: in the storage.
        endpoint: the URL at which the server answers.
        storage_options: credentials and endpoints of the storage.
        import_from: URLs below which objects may be imported.
        access_log: ``"-"``, a file, or None.
        signing_key: of URLs that the server signs itself; the same in all workers.
        take_over: also when another process owns the records.
    """

    storage_url: str
    metadata: str | None = field(repr=False)
    endpoint: str
    storage_options: Mapping[str, str] | None = field(repr=False)
    import_from: tuple[str, ...]
    access_log: str | None
    signing_key: bytes = field(repr=False)
    options: ServerOptions
    repository_options: RepositoryOptions
    take_over: bool = False
    durable: bool = True
    resume_imports: bool = True


@dataclass(frozen=True, slots=True)
class Started:
    """A server that answers.

    Attributes:
        endpoint: its URL.
        storage_url: what it serves.
        access_key, secret: of the very first start the first access key, whose role is admin; else None. The secret is
            told here and nowhere else.
    """

    endpoint: str
    storage_url: str
    access_key: str | None = None
    secret: str | None = field(default=None, repr=False)

    def lines(self) -> list[str]:
        """What to tell a person."""
        told = [f"lakebed serves {self.storage_url} at {self.endpoint}"]
        if self.access_key is not None and self.secret is not None:
            told += [
                "This is the first start. Keep this access key (role admin); its secret is not shown again:",
                f"  access key  {self.access_key}",
                f"  secret      {self.secret}",
            ]
        return told
