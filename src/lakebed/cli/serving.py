"""Commands of the server: serve, and the access keys of who may use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from lakebed.cli import args, homes, say
from lakebed.cli.args import DryRun, Json, Yes
from lakebed.cli.grammar import Exit, Group, argument, option
from lakebed.cli.homes import HomeUrl, Metadata
from lakebed.errors import InvalidRequest
from lakebed.repo.options import RepositoryOptions

if TYPE_CHECKING:
    from lakebed.server.keys import AccessKeys

__all__ = ["keys", "register"]

keys = Group("key", "Access keys of a server: who may read, write, or administrate which repositories.")

KeyId = Annotated[str, argument("KEY", help="The access key's id.")]


class Role(StrEnum):
    """What an access key may."""

    read = "read"
    write = "write"
    admin = "admin"


def register(app: Group) -> None:
    """Add the commands to an app."""
    app.command()(serve)


def serve(
    storage: Annotated[str, argument("LAKE", help=args.LAKE_HELP, formerly=["--storage"], is_lake=True)],
    port: Annotated[int, option("--port", min=0, max=65535, help="0: any that is free.")] = 8000,
    host: Annotated[str, option("--host", help="Where to listen.")] = "127.0.0.1",
    metadata: Metadata = None,
    workers: Annotated[
        int, option("--workers", min=1, help="Processes; more than one needs --metadata postgresql://...")
    ] = 1,
    allow_remote: Annotated[
        bool, option("--allow-remote", help="Listen to other machines too: put a proxy that ends TLS in front.")
    ] = False,
    import_from: Annotated[
        list[str] | None,
        option("--import-from", metavar="URL", help="Objects below it may be imported; again for more."),
    ] = None,
    allow_webhook: Annotated[
        list[str] | None,
        option(
            "--allow-webhook",
            metavar="HOST",
            help="A host, address or network that webhooks may reach though it is not public; again for more.",
        ),
    ] = None,
    access_log: Annotated[
        str, option("--access-log", metavar="FILE", help="A JSON line a request; - is standard error, '' no log.")
    ] = "-",
    take_over: Annotated[
        bool, option("--take-over", help="Also from an owner whose lease is live: its process is fenced.")
    ] = False,
    json: Json = False,
) -> None:
    """Serve the repositories of a lake over HTTP, as lakeFS clients expect them, until interrupted."""
    run_server = _server("serve").run_server

    def started(told: Any) -> None:
        if json:
            say.document(
                {
                    "endpoint": told.endpoint,
                    "storage": told.storage_url,
                    "access_key_id": told.access_key,
                    "secret_access_key": told.secret,
                }
            )
        else:
            say.lines(told.lines())
        say.flush()

    code = run_server(
        storage,
        host=host,
        port=port,
        access_log=access_log or None,
        options=_server("options").ServerOptions(
            metadata=metadata,
            workers=workers,
            allow_remote=allow_remote,
            storage_options=args.storage_options(),
            import_from=import_from or (),
            take_over=take_over,
            repository_options=RepositoryOptions(webhook_hosts=(*args.webhook_hosts(), *(allow_webhook or ()))),
        ),
        started=started,
    )
    raise Exit(code)


@keys.command("create")
def create_key(
    lake: HomeUrl,
    role: Annotated[Role, option("--role", help="What it may: read, write or admin.")] = Role.write,
    repository: Annotated[
        list[str] | None, option("--repository", help="Only this repository; again for more. Default: all.")
    ] = None,
    description: Annotated[str, option("--description", help="What it is for.")] = "",
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Make an access key; its secret is shown this once."""
    with homes.writing(lake, metadata=metadata, create=not repository) as home:
        for name in repository or ():
            home.repository(name)  # a key for a mistyped name would let its holder do nothing
        made = _access_keys(home).create(
            role=role.value, repositories=tuple(repository) if repository else None, description=description
        )
    _say_secret(made, json=json)


@keys.command("list")
def list_keys(lake: HomeUrl, metadata: Metadata = None, json: Json = False) -> None:
    """List the access keys; secrets are stored nowhere."""
    with homes.reading(lake, metadata=metadata) as home:
        found: list[dict[str, Any]] = [
            {
                "id": key.id,
                "role": key.role,
                "repositories": None if key.repositories is None else list(key.repositories),
                "created_ms": key.created_at_ms,
                "description": key.description,
            }
            for key in _access_keys(home).list()
        ]
    if json:
        say.document(found)
        return
    say.grid(
        ("access key", "role", "repositories", "made", "what for"),
        [
            (
                one["id"],
                one["role"],
                "all" if one["repositories"] is None else ", ".join(one["repositories"]),
                say.ago(one["created_ms"]),
                one["description"] or "-",
            )
            for one in found
        ],
        less=("made",),
        sentences=("repositories", "what for"),
        empty="No access key: the first start of a server makes one.",
    )


@keys.command("rotate")
def rotate_key(lake: HomeUrl, key: KeyId, metadata: Metadata = None, json: Json = False) -> None:
    """Give an access key a new secret, shown this once; the old one ends, at running servers within seconds."""
    with _keys(lake, metadata=metadata) as opened:
        made = opened.rotate(key)
    _say_secret(made, json=json)


@keys.command("revoke")
def revoke_key(
    lake: HomeUrl, key: KeyId, dry_run: DryRun = False, yes: Yes = False, metadata: Metadata = None, json: Json = False
) -> None:
    """End an access key, at running servers within seconds."""
    if dry_run:
        with homes.reading(lake, metadata=metadata) as home:
            found = _access_keys(home).get(key)
        text = f"Would end the access key {key} (role {found.role})."
        say.result(json, {"id": key, "role": found.role, "dry_run": True}, text)
        return
    say.ask(f"End the access key {key}?", yes=yes, json=json)
    with _keys(lake, metadata=metadata) as opened:
        opened.revoke(key)
    say.result(json, {"id": key, "dry_run": False}, f"Ended the access key {key}.")


# ---- inside


def _server(module: str) -> Any:
    """A module of the server. Raises `InvalidRequest` where what it needs is not installed."""
    import importlib

    try:
        return importlib.import_module(f"lakebed.server.{module}")
    except ModuleNotFoundError as missing:
        raise InvalidRequest(
            f"The server needs {missing.name}, which is not installed: pip install 'lakebed[server]'.",
            kind="not_installed",
        ) from missing


def _access_keys(home: Any) -> AccessKeys:
    """The access keys of a lake: of its records, or by way of the server that was named, or that owns them."""
    if homes.is_remote(home):
        told: AccessKeys = home.access_keys  # the same methods
        return told
    found: AccessKeys = _server("keys").AccessKeys(home.key_value, environment=home.environment)
    return found


@contextmanager
def _keys(url: str, *, metadata: str | None) -> Iterator[AccessKeys]:
    """The access keys of a lake, to change."""
    with homes.writing(url, metadata=metadata, create=True) as home:
        yield _access_keys(home)


def _say_secret(made: Any, *, json: bool) -> None:
    facts = {"access_key_id": made.key.id, "secret_access_key": made.secret, "role": made.key.role}
    only = f", only in {', '.join(made.key.repositories)}" if made.key.repositories else ""
    text = f"access key  {made.key.id}\nsecret      {made.secret}\nrole        {made.key.role}{only}"
    text += "\nKeep the secret: it is not shown again."
    say.result(json, facts, text)
