"""The lake, or its table, on which a command works. Databases and repositories have `kv_context` and `repo_context`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lakebed
from lakebed.cli.arguments import Branch, Lake, TableName
from lakebed.cli.command import Command
from lakebed.errors import InvalidRequest

if TYPE_CHECKING:
    from lakebed.lake.lake import Lake as OpenLake
    from lakebed.table.table import Table


class LakeCommand(Command):
    """A command on a lake."""

    lake: Lake

    def open_lake(self, *, create: bool = False) -> OpenLake:
        """Open the lake. Create a missing lake only with `create`."""
        url = self.lake
        if url.startswith(("http://", "https://")):
            raise InvalidRequest(
                f"{url} is a server of repositories, and this command needs the folder or bucket of a lake: name that. "
                f"For a server: lakebed repo list {url}, lakebed repo collect {url} REPOSITORY.",
                kind="server_url",
            )
        return lakebed.open(url, create=create, storage_options=self.storage_options)


class TableCommand(LakeCommand):
    """A command on a table of a lake."""

    table: TableName

    def open_table(self, *, branch: str | None = None) -> Table:
        """Open the table, or a branch of it."""
        return self.open_lake().table(self.table, branch=branch)


class BranchTableCommand(TableCommand):
    """A command on a table, or on a branch of it that ``--branch`` names."""

    branch: Branch = None

    def open_branch(self) -> Table:
        """Open the table or the branch."""
        return self.open_table(branch=self.branch)
