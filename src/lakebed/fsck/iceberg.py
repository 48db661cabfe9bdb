"""The check of what Iceberg's clients read of a table (`lakebed/iceberg/`).

An object whose manifest, list or index file is gone is an orphan. With ``deep``, every manifest that a manifest list
names must exist with the size that the list states: else a client fails, though no row is lost. To delete the folder
repairs it: it is written again when a client asks.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakebed.fsck.model import Findings
from lakebed.objects.port import ObjectMeta
from lakebed.table.iceberg.avro_files import decode_list
from lakebed.table.model.layout import parse_derived
from lakebed.table.table import Table


def check_iceberg(table: Table, listed: Mapping[str, ObjectMeta], findings: Findings) -> None:
    """Check the objects for Iceberg's clients. Cost: with ``deep`` 1 GET a manifest list, else nothing.

    Args:
        listed: all objects of the table.
    """
    for path, meta in listed.items():
        source = parse_derived(path)
        if source is None:
            continue
        if source not in listed:
            findings.orphan(meta, f"is for Iceberg's clients, and {source}, of which it was made, is gone.")
        elif findings.report.deep and "~list-" in path:
            with findings.reading(path, needed_by="Iceberg's clients"):
                for url, size_bytes in decode_list(table.store.get(path), path=path):
                    inside = url.removeprefix(f"{table.url}/")
                    if inside != url:  # a lake that was moved has lists of its old place too
                        findings.check_object(inside, listed.get(inside), size_bytes=size_bytes, needed_by=path)
