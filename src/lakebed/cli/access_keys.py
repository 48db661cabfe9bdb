"""Commands on the access keys of a server: create, list, rotate, revoke."""

from __future__ import annotations

from typing import Annotated, Any

from lakebed.cli import output
from lakebed.cli.command import Deletion
from lakebed.cli.grammar import argument, option
from lakebed.cli.repo_context import RepositoriesCommand
from lakebed.http.declaration import Role
from lakebed.repo.opening import is_server
from lakebed.repo.repositories import Repositories, local_catalog
from lakebed.server.keys import ALL_TABLES, AccessKeys, NewAccessKey, check_revocable

KeyId = Annotated[str, argument("KEY", help="The access key's id.")]


class CreateKey(RepositoriesCommand, name="create"):
    """Create an access key; its secret is shown only once."""

    role: Annotated[Role, option("--role", help="What the key permits.")] = "write"
    repository: Annotated[
        list[str] | None,
        option("--repository", help="Only this repository; repeat it for more. Default: all, or none with --table."),
    ] = None
    table: Annotated[
        list[str] | None,
        option(
            "--table",
            help="Only this table (DB.TABLE or *); repeat it for more. Default: all, or none with --repository.",
        ),
    ] = None
    database: Annotated[
        list[str] | None, option("--database", help="Only the tables of this database; repeat it for more.")
    ] = None
    description: Annotated[str, option("--description", help="What it is for.")] = ""

    def run(self) -> None:
        tables = (*(self.table or ()), *(f"{name}.{ALL_TABLES}" for name in self.database or ()))
        self.refuse_other_folder()
        with self.writing_all(create=not self.repository) as repositories:
            for name in self.repository or ():
                repositories.repository(name)  # a key for a mistyped name would be useless
            access_key = _access_keys(repositories).create(
                role=self.role,
                repositories=tuple(self.repository) if self.repository else None,
                tables=tables or None,
                description=self.description,
            )
        _print_secret(access_key, json=self.json)


class ListKeys(RepositoriesCommand, name="list"):
    """List the access keys; their secrets are not stored."""

    def run(self) -> None:
        with self.reading_all() as repositories:
            records: list[dict[str, Any]] = [
                {
                    "id": key.id,
                    "role": key.role,
                    "repositories": None if key.repositories is None else list(key.repositories),
                    "tables": None if key.tables is None else list(key.tables),
                    "created_ms": key.created_at_ms,
                    "description": key.description,
                }
                for key in _access_keys(repositories).list()
            ]
        self.grid(
            records,
            ("access key", "role", "repositories", "tables", "created", "what for"),
            [
                (
                    record["id"],
                    record["role"],
                    _names(record["repositories"], record["tables"]),
                    _names(record["tables"], record["repositories"]),
                    output.ago(record["created_ms"]),
                    record["description"] or "-",
                )
                for record in records
            ],
            less=("created",),
            sentences=("repositories", "tables", "what for"),
            empty="No access key: the first start of a server creates one.",
        )


class RotateKey(RepositoriesCommand, name="rotate"):
    """Give an access key a new secret, shown only once; running servers refuse the old one within seconds."""

    key: KeyId

    def run(self) -> None:
        with self.writing_all(create=True) as repositories:
            access_key = _access_keys(repositories).rotate(self.key)
        _print_secret(access_key, json=self.json)


class RevokeKey(Deletion, RepositoriesCommand, name="revoke"):
    """Revoke an access key; running servers refuse it within seconds."""

    key: KeyId

    def run(self) -> None:
        if self.dry_run:
            with self.reading_all() as repositories:
                keys = _access_keys(repositories)
                access_key = keys.get(self.key)
                check_revocable(access_key, listed=keys.list())
            text = f"Would revoke the access key {self.key} (role {access_key.role})."
            self.result({"id": self.key, "role": access_key.role, "dry_run": True}, text)
            return
        self.ask(f"Revoke the access key {self.key}?")
        with self.writing_all(create=True) as repositories:
            _access_keys(repositories).revoke(self.key)
        self.result({"id": self.key, "dry_run": False}, f"Revoked the access key {self.key}.")


def _access_keys(repositories: Repositories) -> Any:
    """Return the access keys of a lake, from its records or from the server that owns them.

    Both have the same methods.
    """
    if is_server(repositories.url):
        return repositories.access_keys
    catalog = local_catalog(repositories)
    return AccessKeys(catalog.key_value, environment=catalog.environment)


def _names(names: list[str] | None, other_limits: list[str] | None) -> str:
    """Return what a key may see of one kind, given its limits of the other kind."""
    if names is None:
        return "all" if other_limits is None else "none"
    return ", ".join(names) or "none"


def _print_secret(access_key: NewAccessKey, *, json: bool) -> None:
    facts = {"access_key_id": access_key.key.id, "secret_access_key": access_key.secret, "role": access_key.key.role}
    limits = (*(access_key.key.repositories or ()), *(access_key.key.tables or ()))
    only = f", only in {', '.join(limits)}" if limits else ""
    text = f"access key  {access_key.key.id}\nsecret      {access_key.secret}\nrole        {access_key.key.role}{only}"
    text += "\nKeep the secret: it is not shown again."
    output.result(json, facts, text)
