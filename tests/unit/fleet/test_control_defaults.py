"""What a control plane runs with when its caller says nothing: as the design writes it down."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Final

from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.serve import LEDGER_OPTIONS
from lakebed.kv import DatabaseOptions

DESIGN: Final = Path(__file__).parents[3] / "docs" / "design" / "0042-fleet.md"


def defaults_section() -> str:
    """What the page says of defaults."""
    return DESIGN.read_text().partition("\n## Defaults\n")[2].partition("\n## ")[0]


def test_the_settings_of_a_control_plane_are_those_of_the_design() -> None:
    """Each time and limit has its row in the table, and the row its value."""
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", defaults_section(), re.MULTILINE)
    written = {name: int(value.replace(",", "")) for name, value in rows}
    settings = asdict(ControlOptions())
    assert settings.pop("address") is None
    assert settings == written
    assert ControlOptions(retry_ms=1_500).retry_s == 1.5


def test_the_ledger_takes_as_much_memory_as_the_design_says() -> None:
    """Its memtables, its history and its lease are named; all else is as of any database."""
    text = re.search(
        r"memtables of (\d+) MiB, at most (\d+) MiB of them that are not flushed, (\d+) MiB of the history "
        r"of transactions, and a lease of ([\d,]+) ms",
        " ".join(defaults_section().split()),
    )
    assert text is not None
    memtable_mib, unflushed_mib, history_mib, lease_ms = (int(part.replace(",", "")) for part in text.groups())
    mib = 1_048_576
    assert asdict(LEDGER_OPTIONS) == asdict(DatabaseOptions()) | {
        "l0_sst_bytes": memtable_mib * mib,
        "unflushed_bytes_max": unflushed_mib * mib,
        "transaction_history_bytes_max": history_mib * mib,
        "lease_lifetime_ms": lease_ms,
    }
