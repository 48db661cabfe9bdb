"""An extension of griffe, which reads the source for the reference: `open` of a package is the function that it names.

`lakebed.open` is an assignment, ``open = open_lake``, because the names of packages are loaded on first use; the
reference shows the function, under the name that users write.
"""

from __future__ import annotations

import copy
from typing import Any

from griffe import Attribute, Extension, Module


class PublicNames(Extension):
    """Replaces ``open = function`` by the function."""

    def on_package(self, *, pkg: Module, **options: Any) -> None:
        """Look at the package and at the packages directly in it."""
        for module in (pkg, *pkg.modules.values()):
            assigned = module.members.get("open")
            if isinstance(assigned, Attribute) and str(assigned.value) in module.members:
                function = copy.copy(module[str(assigned.value)].final_target)
                function.name = "open"
                function.parent = module
                module.members["open"] = function
