"""Run lakeFS's own system tests against `lakebed serve`, or against lakeFS, and compare with what is known of them.

    .venv/bin/python tests/interop/lakefs/esti.py [--peer] [-k REGEX] [--show]

The tests (``esti``) are not part of this repository: ``make lakefs`` builds them. ``esti.toml`` has those that lakeFS
does not pass itself on local storage, and those that fail here, with their reasons. A test that fails and is not
listed, or is listed and passes, is an error.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "peers"))

from lakefs_server import BUILT, Place, lakebed_server, lakefs_server

_KNOWN: Final = Path(__file__).with_name("esti.toml")
_OUTCOME: Final = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+)", re.MULTILINE)
_BEGUN: Final = re.compile(r"^=== RUN +(Test\w+)$", re.MULTILINE)
_RUN_S_MAX: Final = 1_800
_SKIPPED: Final = ".*GC"
"""Needs Spark in a container."""


def run_suite(*, peer: bool, chosen: str, folder: Path) -> dict[str, str]:
    """The outcome of every test: ``PASS``, ``FAIL`` or ``SKIP``. A test that fails runs once more, alone.

    Some of lakeFS's tests wait for less than a busy machine needs.

    Args:
        peer: against lakeFS.
        chosen: a regular expression; empty: all.
    """
    server = lakefs_server(folder / "peer") if peer else lakebed_server(folder / "lakebed", imports=True)
    outcomes: dict[str, str] = {}
    number = 0
    with server as place:

        def run(chosen: str, skipped: str) -> dict[str, str]:
            nonlocal number
            number += 1
            return _run_round(place, folder / f"output-{number}", chosen=chosen, skipped=skipped)

        # A test that panics ends the process: the others run in another.
        while added := run(chosen, "|".join([_SKIPPED, *(f"^{name}$" for name in outcomes)])):
            outcomes |= added
        failed = [name for name, outcome in outcomes.items() if outcome == "FAIL"]
        for name in failed:
            outcomes |= run(f"^{name}$", _SKIPPED)
    return outcomes


def _run_round(place: Place, log: Path, *, chosen: str, skipped: str) -> dict[str, str]:
    settings = {
        "SETUP_LAKEFS": "false",
        "ENDPOINT_URL": place.endpoint,
        "S3_ENDPOINT": place.domain,
        "FORCE_PATH_STYLE": "true",
        "BLOCKSTORE_TYPE": "local",
        "STORAGE_NAMESPACE": "local://system-testing",
        "BINARIES_DIR": str(BUILT),
    }
    environment = {
        **os.environ,
        **{f"ESTI_{name}": value for name, value in settings.items()},
        "TEST_WEBHOOK_HOST": "localhost",
        "LAKEFSACTION_VAR": "this_is_actions_var",
    }
    command = [str(BUILT / "esti.test"), "-test.v", f"-test.timeout={_RUN_S_MAX}s", f"-test.skip={skipped}"]
    command += [f"-test.run={chosen}"] if chosen else []
    command += ["-system-tests", "-use-local-credentials", f"-admin-access-key-id={place.access_key}"]
    command += [f"-admin-secret-access-key={place.secret}"]
    with log.open("w") as output:
        subprocess.run(
            command, cwd=BUILT / "source" / "esti", env=environment, stdout=output, stderr=output, check=False
        )
    text = log.read_text(errors="replace")
    ended = {name: outcome for outcome, name in _OUTCOME.findall(text)}
    return {name: ended.get(name, "FAIL") for name in _BEGUN.findall(text)}


def judge(outcomes: dict[str, str]) -> list[str]:
    """What differs from what is known of `lakebed serve`."""
    known = tomllib.loads(_KNOWN.read_text())
    listed: dict[str, str] = known["failures"]
    excused = set(known["lakefs_fails"])
    lines = [
        f"{name} fails, and is not listed"
        for name, outcome in sorted(outcomes.items())
        if outcome == "FAIL" and name not in listed and name not in excused
    ]
    lines += [f"{name} passes, and is listed as a failure" for name in sorted(listed) if outcomes.get(name) == "PASS"]
    return lines


def main() -> int:
    """Run the suite, print what differs and the score; the exit code is 1 when something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", action="store_true", help="Against lakeFS itself; nothing is compared.")
    parser.add_argument("-k", dest="chosen", default="", help="A regular expression of names.")
    parser.add_argument("--show", action="store_true", help="Print every outcome.")
    parser.add_argument("--keep", type=Path, help="A folder for the outputs of the rounds.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        outcomes = run_suite(peer=arguments.peer, chosen=arguments.chosen, folder=folder)
        if not outcomes:
            print((folder / "output-1").read_text()[-2_000:])
            return 1
    if arguments.show:
        print("\n".join(f"{outcome} {name}" for name, outcome in sorted(outcomes.items())))
    differences = [] if arguments.peer else judge(outcomes)
    print("\n".join(differences))
    passed = sum(outcome == "PASS" for outcome in outcomes.values())
    skipped = sum(outcome == "SKIP" for outcome in outcomes.values())
    print(f"{passed} of {len(outcomes)} tests pass, and {skipped} skip themselves.")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
