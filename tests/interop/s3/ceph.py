"""Run Ceph's public suite for S3 servers against a gateway of ours, and compare with what is known of it.

    .venv/bin/python tests/interop/s3/ceph.py SUITE [--python PYTHON] [-k EXPRESSION] [--show]

SUITE is a checkout of https://github.com/ceph/s3-tests; PYTHON has what its ``requirements.txt`` names. The suite is
not part of this repository. Its buckets are branches: their names begin with ``suite.``, a repository made here.

``ceph.toml`` has the operations that are not served, by the marks and names of their tests, and every other test that
fails, with its reason. A test that fails and is not listed, or is listed and passes, is an error.
"""

from __future__ import annotations

import argparse
import configparser
import os
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import urlsplit

import urllib3

from lakebed.server.keys import NewAccessKey
from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

_KNOWN = Path(__file__).with_name("ceph.toml")
_REPOSITORY = "suite"
_DOMAIN = "localhost"
"""Where the suite's requests go: one without a signature is one of S3 too."""


def run_suite(suite: Path, *, python: str, chosen: str, folder: Path) -> dict[str, str]:
    """The outcome of every test: ``passed``, ``skipped`` or the first line of its failure."""
    known = tomllib.loads(_KNOWN.read_text())
    options = ServerOptions(durable=False, s3_key_file=str(folder / "s3.key"), s3_domains=(_DOMAIN,))
    with start_server(folder / "lake", options=options) as server:
        config = _write_config(server, folder / "suite.conf")
        report = folder / "report.xml"
        marks = " and ".join(f"not {mark}" for mark in known["unserved_marks"])
        names = f"not ({' or '.join(known['unserved_names'])})" + (f" and ({chosen})" if chosen else "")
        command = [python, "-m", "pytest", "s3tests/functional/test_s3.py", "-q", "-m", marks, "-k", names]
        command += ["-p", "no:cacheprovider", f"--junitxml={report}", "--tb=short"]
        environment = {**os.environ, "S3TEST_CONF": str(config)}
        environment.pop("PYTHONPATH", None)
        with (folder / "output").open("w") as output:
            subprocess.run(command, cwd=suite, env=environment, stdout=output, stderr=output, check=False)
    return _outcomes(report)


def _write_config(server: Running, path: Path) -> Path:
    """The suite's configuration: a repository for its buckets, and an access key for each of its users."""
    first = server.started
    assert first.access_key is not None
    assert first.secret is not None
    reply = urllib3.request(
        "POST",
        f"{first.endpoint}/api/v1/repositories",
        json={"name": _REPOSITORY, "storage_namespace": f"local://{_REPOSITORY}"},
        headers=urllib3.make_headers(basic_auth=f"{first.access_key}:{first.secret}"),
    )
    assert reply.status == 201, reply.data
    place = urlsplit(first.endpoint)
    config = configparser.RawConfigParser()
    config["DEFAULT"] = {"host": _DOMAIN, "port": str(place.port), "is_secure": "no", "ssl_verify": "no"}
    config["fixtures"] = {"bucket prefix": _REPOSITORY + ".{random}-"}
    for user in ("s3 main", "s3 alt", "s3 tenant", "iam", "iam root", "iam alt root"):
        made: NewAccessKey = server.site.keys.create(role="admin")
        config[user] = {
            "access_key": made.key.id,
            "secret_key": made.secret,
            "user_id": made.key.id,
            "display_name": made.key.id,
            "email": "suite@example.com",
            "tenant": "tenant",
        }
    with path.open("w") as file:
        config.write(file)
    return path


def _outcomes(report: Path) -> dict[str, str]:
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        problem = case.find("failure")
        if problem is None:
            problem = case.find("error")
        name = str(case.get("name"))
        if problem is not None:
            outcomes[name] = str(problem.get("message")).splitlines()[0][:200]
        else:
            outcomes[name] = "passed" if case.find("skipped") is None else "skipped"
    return outcomes


def judge(outcomes: dict[str, str]) -> list[str]:
    """What differs from what is known."""
    reasons: dict[str, str] = tomllib.loads(_KNOWN.read_text())["failures"]
    failed = {name for name, outcome in outcomes.items() if outcome not in ("passed", "skipped")}
    lines = [f"{name} fails, and is not listed: {outcomes[name]}" for name in sorted(failed - reasons.keys())]
    lines += [
        f"{name} passes, and is listed as a failure"
        for name in sorted(reasons.keys())
        if outcomes.get(name, "skipped") == "passed"
    ]
    return lines


def main() -> int:
    """Run the suite, print what differs and the score; the exit code is 1 when something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("-k", dest="chosen", default="")
    parser.add_argument("--show", action="store_true", help="Print every outcome.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_suite(arguments.suite, python=arguments.python, chosen=arguments.chosen, folder=Path(folder))
        if not outcomes:
            print((Path(folder) / "output").read_text()[-2_000:])
            return 1
    if arguments.show:
        print("\n".join(f"{outcome:60} {name}" for name, outcome in sorted(outcomes.items())))
    differences = judge(outcomes)
    print("\n".join(differences))
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    print(f"{passed} of {sum(outcome != 'skipped' for outcome in outcomes.values())} tests of served operations pass.")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
