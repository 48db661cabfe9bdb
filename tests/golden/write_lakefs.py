"""Writes `lakefs/`: a storage namespace that lakeFS's own server has written, its dump, and what its history is.

    LAKEFS_BUILT=build/lakefs PYTHONPATH=tests:bench/peers python tests/golden/write_lakefs.py

Needs lakeFS as ``make lakefs`` builds it. A newer version gets a folder of its own.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import tempfile

from lakefs_server import lakefs_server

from worlds.lakefs_history import LakefsClient, describe, make_history


def main() -> None:
    """Write the namespace, unless it is there."""
    target = pathlib.Path(__file__).parent / "lakefs"
    target.mkdir()
    with tempfile.TemporaryDirectory() as folder, lakefs_server(pathlib.Path(folder) / "server") as place:
        client = LakefsClient(place.endpoint, place.access_key, place.secret)
        make_history(client, namespace="local://analytics")
        refs = client.dump()
        (target / "refs.json").write_text(json.dumps(refs, indent=1) + "\n")
        (target / "history.json").write_text(json.dumps(describe(client), indent=1, sort_keys=True) + "\n")
        shutil.copytree(pathlib.Path(folder) / "server" / "objects" / "analytics", target / "namespace")


if __name__ == "__main__":
    main()
