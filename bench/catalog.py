"""The catalog benchmark: ``python bench/catalog.py [--scale 1] [--only iceberg,paimon] [--samples 5] [--dry]``.

Groups, each in a module of its own: iceberg (`catalog_iceberg.py`), paimon (`catalog_paimon.py`).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import catalog_iceberg
import catalog_paimon
import harness
from harness import Result


@dataclass
class Bench:
    """Where and how large to measure."""

    folder: Path
    scale: float
    sample_count: int


GROUPS: dict[str, Callable[[Bench], list[Result]]] = {
    "iceberg": catalog_iceberg.measure_iceberg,
    "paimon": catalog_paimon.measure_paimon,
}


def main() -> None:
    """Run the chosen groups and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="0.1 for a quick look")
    parser.add_argument("--samples", type=int, default=harness.SAMPLE_COUNT_MIN)
    parser.add_argument("--only", default=",".join(GROUPS), help="comma-separated groups")
    parser.add_argument("--dry", action="store_true", help="print, but leave the committed results alone")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.only.split(",") if name not in GROUPS]
    if unknown:
        parser.error(f"no group {unknown[0]!r}; there are {', '.join(GROUPS)}")
    folder = Path(tempfile.mkdtemp(prefix="lakebed-bench-"))
    results: list[Result] = []
    try:
        for name in chosen.only.split(","):
            results += GROUPS[name](Bench(folder, chosen.scale, chosen.samples))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    versions = harness.versions_of("lakebed", "pyarrow", "starlette", "uvicorn", "pyiceberg")
    if not chosen.dry:
        print(f"written: {harness.write_results('catalog', results, scale=chosen.scale, versions=versions)}")


if __name__ == "__main__":
    main()
