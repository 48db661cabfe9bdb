"""Every command of the command line, one after another in a lake of its own, on this process's standard output.

    python every_command.py FOLDER WIDTH...

For each width the commands run at the terminal that is standard output, made that wide. Each command's exit code goes
to ``FOLDER/codes.json``. A record separator after the output of each command lets a reader split them.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import sys
import termios
from pathlib import Path

from lakebed.cli import exits, standard
from lakebed.cli.main import run

SEPARATOR = "\x1e"

COMMANDS: list[tuple[str, int]] = [
    ("version", 0),
    ("completion bash", 0),
    ("table create LAKE t --column id|BIGINT --column n|INT --column v|STRING --primary-key id -o bucket=1", 0),
    ("table upsert LAKE t rows.csv", 0),
    ("table upsert LAKE t rows.csv", 0),
    ("table write LAKE t rows.csv", 0),
    ("table create LAKE plain --like rows.csv", 0),
    ("table append LAKE plain rows.csv", 0),
    ("table overwrite LAKE plain rows.csv --yes", 0),
    ("table describe LAKE t", 0),
    ("table add-column LAKE plain extra STRING", 0),
    ("table rename-column LAKE plain extra more", 0),
    ("table drop-column LAKE plain more --yes", 0),
    ("table widen-column LAKE t n BIGINT", 0),
    ("table set-option LAKE t snapshot.num-retained.max=9", 0),
    ("table unset-option LAKE t snapshot.num-retained.max", 0),
    ("table read LAKE t", 0),
    ("table export LAKE t FOLDER/left --format parquet", 0),
    ("table import LAKE came FOLDER/left --format parquet", 0),
    ("table diff LAKE t 1 3", 0),
    ("table changes LAKE t 1 3", 0),
    ("table tag LAKE t jan --lifetime 7d", 0),
    ("table tags LAKE t", 0),
    ("table replace-tag LAKE t jan", 0),
    ("table rename-tag LAKE t jan feb", 0),
    ("table branch LAKE t dev", 0),
    ("table branches LAKE t", 0),
    ("table fast-forward LAKE t dev", 0),
    ("table rename-branch LAKE t dev trial", 0),
    ("table drop-branch LAKE t trial --yes", 0),
    ("table history LAKE t", 0),
    ("table why LAKE t feb", 0),
    ("table system LAKE t files", 0),
    ("table delete LAKE t --where id=1 --yes", 0),
    ("table rollback LAKE t --tag feb --as-latest --yes", 0),
    ("table compact LAKE t --full", 0),
    ("table fsck LAKE t --deep", 0),
    ("table drop-tag LAKE t feb --yes", 0),
    ("table expire-tags LAKE t --yes", 0),
    ("table expire LAKE t --retain-max 1 --retain-min 1 --yes", 0),
    ("table collect LAKE t --yes", 0),
    ("kv create LAKE serving", 0),
    ("kv put LAKE serving k v", 0),
    ("kv get LAKE serving k", 0),
    ("kv scan LAKE serving", 0),
    ("kv stats LAKE serving", 0),
    ("kv tag LAKE serving weekly", 0),
    ("kv tags LAKE serving", 0),
    ("kv why LAKE serving weekly", 0),
    ("kv refresh-tag LAKE serving weekly --lifetime 1d", 0),
    ("kv put LAKE serving k w", 0),
    ("kv branch LAKE serving copy", 0),
    ("kv compact LAKE serving --full", 0),
    ("kv manifest LAKE serving", 0),
    ("kv manifests LAKE serving", 0),
    ("kv delete LAKE serving k --yes", 0),
    ("kv restore LAKE serving weekly --yes", 0),
    ("kv drop-tag LAKE serving weekly --yes", 0),
    ("kv collect LAKE --grace 0s --yes", 0),
    ("kv drop LAKE copy --hard --yes", 0),
    ("repo create LAKE rep", 0),
    ("repo list LAKE", 0),
    ("repo put LAKE rep main a.csv rows.csv", 0),
    ("repo status LAKE rep main", 0),
    ("repo compact LAKE rep main", 0),
    ("repo commit LAKE rep main -m first", 0),
    ("repo log LAKE rep main", 0),
    ("repo show LAKE rep main", 0),
    ("repo why LAKE rep main", 0),
    ("repo ls LAKE rep main", 0),
    ("repo stat LAKE rep main a.csv", 0),
    ("repo get LAKE rep main a.csv", 0),
    ("repo download LAKE rep main FOLDER/out", 0),
    ("repo blame LAKE rep main a.csv", 0),
    ("repo branch LAKE rep dev", 0),
    ("repo branches LAKE rep", 0),
    ("repo put LAKE rep dev b.csv rows.csv", 0),
    ("repo commit LAKE rep dev -m second", 0),
    ("repo diff LAKE rep main dev", 0),
    ("repo tag LAKE rep v1 dev", 0),
    ("repo tags LAKE rep", 0),
    ("repo cherry-pick LAKE rep main dev", 0),
    ("repo revert LAKE rep main main", 0),
    ("repo merge LAKE rep dev main --allow-empty", 0),
    ("repo rebase LAKE rep dev main", 0),
    ("repo rm LAKE rep dev a.csv --yes", 0),
    ("repo upload LAKE rep dev FOLDER/in up", 0),
    ("repo reset LAKE rep dev --yes", 0),
    ("repo import LAKE rep dev FOLDER/in in/ -m import", 0),
    ("repo export-lakefs LAKE rep --to FOLDER/lakefs --refs FOLDER/refs.json --commit-ids FOLDER/ids.json", 0),
    ("repo import-lakefs LAKE moved --from FOLDER/lakefs --refs FOLDER/refs.json", 0),
    ("repo protect LAKE rep ma*", 0),
    ("repo set-retention LAKE rep 30", 0),
    ("repo retention LAKE rep", 0),
    ("repo drop-retention LAKE rep --yes", 0),
    ("repo drop-branch LAKE rep dev --yes", 0),
    ("repo undelete-branch LAKE rep dev", 0),
    ("repo drop-tag LAKE rep v1 --yes", 0),
    ("repo collect LAKE rep --grace 0s --yes", 0),
    ("key create LAKE", 0),
    ("key list LAKE", 0),
    ("key rotate LAKE nope", exits.NOT_FOUND),
    ("key revoke LAKE nope --yes", exits.NOT_FOUND),
    ("serve LAKE --workers 2", exits.USAGE),
    ("pipeline run FOLDER/none.yaml --check", exits.NOT_FOUND),
    ("pipeline status LAKE", 0),
    ("pipeline report LAKE -o report.html", 0),
    ("fleet up LAKE --nodes 0", exits.USAGE),
    ("fleet control LAKE", exits.USAGE),
    ("fleet node --control nope --local FOLDER/node", exits.USAGE),
    ("fleet log LAKE --host 192.0.2.1", exits.USAGE),
    *(
        (f"fleet {line}", exits.NOT_FOUND)
        for line in (
            *("status LAKE", "txns LAKE t", "events LAKE", "migrate LAKE t n", "attach-reader LAKE t n"),
            *("drain LAKE n", "decommission LAKE n --yes", "ack LAKE t 1 --yes", "collect LAKE --dry-run"),
            *("create LAKE t", "drop LAKE t --yes", "tenants LAKE", "policy LAKE t", "timelines LAKE t"),
            *("create-timeline LAKE t a", "branch LAKE t b", "pin LAKE t p", "why LAKE t 1"),
            *("restore LAKE t 1 --yes", "detach LAKE t b", "drop-timeline LAKE t b --yes", "commit LAKE t"),
            *("put LAKE t k v", "get LAKE t k", "delete LAKE t k --yes", "scan LAKE t"),
        )
    ),
    ("ls LAKE", 0),
    ("ls LAKE --json", 0),
    ("history LAKE", 0),
    ("pins LAKE", 0),
    ("why LAKE lakebed.json", 0),
    ("fsck LAKE --deep", 0),
    ("fsck LAKE --repair-statistics", 0),
    ("collect LAKE --yes", 0),
    ("repo drop LAKE rep --yes", 0),
    ("table drop LAKE plain --yes", 0),
]
"""Each with its exit code. A bar represents a space inside of an argument."""


def words_of(line: str, *, folder: Path, lake: Path) -> list[str]:
    """The arguments of a line of the story."""
    places = {"LAKE": str(lake), "FOLDER": str(folder)}
    return ["/".join(places.get(part, part) for part in word.split("/")).replace("|", " ") for word in line.split(" ")]


def main() -> None:
    """Run the story once for each width."""
    standard.guard()
    folder = Path(sys.argv[1])
    (folder / "in").mkdir()
    (folder / "in" / "c.txt").write_text("c")
    (folder / "rows.csv").write_text(
        "id,n,v\n" + "".join(f"{one},{one},välue {one} {'x' * one}\n" for one in range(70))
    )
    os.chdir(folder)
    codes: dict[str, list[int]] = {}
    for width in sys.argv[2:]:
        if sys.stdout.isatty():
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(width), 0, 0))
        lake = folder / f"lake{width}"
        codes[width] = []
        for line, _ in COMMANDS:
            standard.guard()  # for each command anew: what one could not print says nothing of the next
            codes[width].append(run(words_of(line, folder=folder, lake=lake)))
            standard.finish()
            sys.stdout.write(SEPARATOR)
            sys.stdout.flush()
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main()
