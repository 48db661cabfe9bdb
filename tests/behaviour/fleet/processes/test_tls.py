"""A fleet of processes that speak TLS with each other and with clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

import lakebed
from lakebed.fleet.connect import TOKEN_VARIABLE
from lakebed.http.tls import CA_VARIABLE, CERTIFICATE_VARIABLE
from worlds.waiting import wait_until


def test_every_part_shows_and_checks_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written and read over TLS, with certificates at both ends; a client without one gets nothing."""
    authority = trustme.CA()
    ca, pair, lake = str(tmp_path / "ca.pem"), str(tmp_path / "pair.pem"), str(tmp_path / "lake")
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pair)
    environment = {**os.environ, TOKEN_VARIABLE: "the token"}
    with ExitStack() as running:

        def start(*words: str) -> str:
            command = [sys.executable, "-m", "lakebed.cli", "fleet", *words, "--json", "--end-with-input"]
            command += ["--tls-certificate", pair, "--tls-ca", ca]
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            running.callback(process.communicate)  # the end of its input ends it
            assert process.stdout is not None
            said = b""
            while not said.rstrip().endswith(b"}"):
                line = process.stdout.readline()
                assert line, process.communicate()[1].decode()
                said += line
            return str(json.loads(said)["url"])

        log = start("log", lake)
        control = start("control", lake, "--log", log)
        start("node", "--control", control, "--local", str(tmp_path / "node"))
        assert log.startswith("https://")
        monkeypatch.setenv(TOKEN_VARIABLE, "the token")
        with pytest.raises(lakebed.Unavailable):
            lakebed.open(lake).fleet()
        monkeypatch.setenv(CA_VARIABLE, ca)
        monkeypatch.setenv(CERTIFICATE_VARIABLE, pair)
        with lakebed.open(lake).fleet() as fleet:
            tenant = fleet.create_tenant("orders").timeline()
            tenant.put(b"k", b"v")
            wait_until(lambda: tenant.get(b"k") == b"v")
            rows = {b"row-%03d" % number: bytes([number]) * 50_000 for number in range(100)}
            tenant.write(rows)
            assert dict(tenant.scan(b"row-", b"row.")) == rows
