"""The settings of one serving process, and the report of a server once it answers. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakebed.server.clients import describe_clients, name_of_folder
from lakebed.server.options import ServerOptions


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything that a serving process needs, in a form that can be pickled. It holds no access key.

    Attributes:
        endpoint: the URL at which the server answers.
        access_log: ``"-"``, a file, or None.
        signing_key: key of URLs that the server signs; the same in all workers, and in all servers with the S3 key.
        s3_key: the key from which the secrets of access keys are derived; None: there is no S3 gateway.
    """

    storage_url: str
    endpoint: str
    access_log: str | None
    signing_key: bytes = field(repr=False)
    options: ServerOptions
    s3_key: bytes | None = field(default=None, repr=False)
    resume_imports: bool = True


@dataclass(frozen=True, slots=True)
class Started:
    """A server that answers.

    Attributes:
        access_key, secret: the first access key, whose role is admin, at the very first start; else None. The secret
            is shown only here.
        speaks_s3: whether it answers S3.
    """

    endpoint: str
    storage_url: str
    access_key: str | None = None
    secret: str | None = field(default=None, repr=False)
    speaks_s3: bool = False

    def lines(self, *, clients: bool = False) -> list[str]:
        """Return the lines to print for a user.

        Args:
            clients: add what each family of clients needs; the first start always adds it.
        """
        lines = [f"lakebed serves {self.storage_url} at {self.endpoint}"]
        if self.access_key is not None and self.secret is not None:
            lines += [
                "This is the first start. Keep this access key (role admin); its secret is not shown again:",
                f"  access key  {self.access_key}",
                f"  secret      {self.secret}",
            ]
        if clients or self.access_key is not None:
            key, secret = self.access_key or "ACCESS_KEY", self.secret or "SECRET"
            for family, text in describe_clients(
                self.endpoint,
                warehouse=name_of_folder(self.storage_url),
                speaks_s3=self.speaks_s3,
                access_key=key,
                secret=secret,
            ):
                lines += ["", f"{family}:", *(f"  {line}" for line in text)]
        return lines
