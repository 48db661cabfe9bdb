"""The database on which a command of ``lakebed kv`` works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import lakebed
from lakebed.cli.arguments import LAKE_HELP
from lakebed.cli.command import Command
from lakebed.cli.grammar import argument, option
from lakebed.errors import LakebedError, NotFound
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.options import DatabaseOptions
from lakebed.lake.names import DATABASE_SUFFIX, database_folder, nearest_names
from lakebed.objects import open_store
from lakebed.objects.path import parse_url

DatabaseLake = Annotated[str | None, argument("LAKE", help=LAKE_HELP, is_lake=True)]
DatabaseName = Annotated[str | None, argument("NAME", help="A database of the lake: serving is at LAKE/serving.kv.")]


SHORT_LIVED: Final = DatabaseOptions(background=False, compaction=False)
"""Options of a writer that lives for one command. It leaves compaction to other processes."""


class DatabaseCommand(Command):
    """A command on a database: one of a lake, or the one that ``--path`` names."""

    lake: DatabaseLake
    name: DatabaseName
    path: Annotated[
        str | None,
        option(
            "--path",
            metavar="URL",
            help="A database outside of a lake, instead of LAKE and NAME.",
            replaces=("lake", "name"),
        ),
    ] = None

    def database(self) -> DatabaseAdmin:
        """Return the database, not opened."""
        if self.path is not None:
            return database_at(self.path, self.storage_options)
        assert self.lake is not None
        assert self.name is not None
        return database_at(url_of(self.lake, self.name), self.storage_options)

    def database_to_create(self) -> DatabaseAdmin:
        """Return the database, not opened. Raises `InvalidRequest` if it is missing and LAKE is not a lake's folder."""
        admin = self.database()
        if self.lake is not None and not admin.exists():
            self.refuse_folder_of_others(self.lake)
        return admin

    def hints(self, problem: LakebedError) -> Iterator[str]:
        """Yield similar names for a database that does not exist. Cost: 1 to 3 LISTs."""
        if problem.kind != "database_not_found" or self.lake is None or self.name is None:
            return
        try:
            similar = nearest_names(self.name, names_of(self.lake, self.storage_options))
            stores = lakebed.open(self.lake, create=False, storage_options=self.storage_options).stores()
            kinds = [] if similar else [store.kind for store in stores if store.name == self.name]
        except NotFound:
            yield f"There is no lake at {self.lake} either: check where it is."
            return
        except LakebedError:  # the explained error gives the reason
            return
        if similar:
            yield f"Did you mean {' or '.join(similar)}?"
        elif kinds:
            yield f"{self.name} is a {kinds[0]} of this lake."


def url_of(lake: str, name: str) -> str:
    """Return the URL of a database of a lake. Raises `InvalidRequest` for an invalid lake or name."""
    return parse_url(lake).join(database_folder(name))


def names_of(lake: str, storage_options: dict[str, str] | None) -> list[str]:
    """Return the names of the databases of a lake, sorted. Raises `NotFound`. Cost: 1 LIST."""
    folders = open_store(lake, storage_options=storage_options, create=False).list_with_delimiter("").folders
    return sorted(folder.removesuffix(DATABASE_SUFFIX) for folder in folders if folder.endswith(DATABASE_SUFFIX))


def database_at(url: str, storage_options: dict[str, str] | None) -> DatabaseAdmin:
    """Return the database at a URL, not opened."""
    return DatabaseAdmin(DatabaseLocation.at(url, storage_options=storage_options))
