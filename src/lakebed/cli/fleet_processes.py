"""Commands of ``lakebed fleet`` that run one part of a fleet each: control, node, log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

import lakebed
from lakebed.cli import exits, output
from lakebed.cli.fleet_context import StorageCommand
from lakebed.cli.grammar import option
from lakebed.cli.serving import ServingCommand
from lakebed.errors import InvalidRequest
from lakebed.fleet.address import LEDGER_VARIABLE, LOG_VARIABLE, check_ledger_url, write_address
from lakebed.fleet.connect import TOKEN_VARIABLE
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.serve import ControlSettings, run_control
from lakebed.fleet.http_ports import HttpNode
from lakebed.fleet.log.open import check_log_url, open_log
from lakebed.fleet.log.serve import LogSettings, run_log
from lakebed.fleet.model import NodeRecord
from lakebed.fleet.node.options import NodeOptions
from lakebed.fleet.node.serve import NodeSettings, run_node
from lakebed.fleet.ports import FleetAddress, NodePort
from lakebed.fleet.together import end_with_input
from lakebed.http.options import HttpOptions
from lakebed.objects.path import parse_url
from lakebed.runtime import Environment

_NODE_S = 2.0
"""How long the control plane waits for a node. A node that hangs delays the failover of other nodes by this time."""


class ProcessCommand(ServingCommand):
    """A command that serves one part of a fleet until it is interrupted."""

    port: Annotated[int, option("--port", min=0, max=65535, help="0: any free port.")] = 0
    access_log: Annotated[
        str,
        option(
            "--access-log",
            metavar="FILE",
            help="Write a line of JSON for each request; - is standard error, '' writes none.",
        ),
    ] = ""
    end_with_input: Annotated[
        bool, option("--end-with-input", help="End when standard input ends, as it does when a parent is killed.")
    ] = False

    def http_options(self) -> HttpOptions:
        """Return the options of its HTTP server. Raises `InvalidRequest` (``invalid_certificate``)."""
        return HttpOptions(tls=self.read_tls())

    def watch_parent(self) -> None:
        """End this process with the process that started it, if requested."""
        if self.end_with_input:
            end_with_input(Environment())

    @property
    def token(self) -> str | None:
        """The token that the parts of the fleet send to each other."""
        return os.environ.get(TOKEN_VARIABLE) or None

    def started(self, what: str, url: str, *, owns: str = "") -> None:
        """Print where the process answers, and what it waits for while another process owns that."""
        if self.json:
            output.document({"url": url, "process": os.getpid()})
        else:
            output.lines([f"The {what} answers at {url}"])
            if owns:
                output.sentence(f"While another process owns the {owns}, it is a standby.")
        output.flush()


class Control(StorageCommand, ProcessCommand, name="control"):
    """Run a control plane until interrupted: it grants transactions, and moves tenants away from silent nodes.

    With a ledger in the storage one process decides, and others wait for its end. With PostgreSQL all of them decide.
    The token of the fleet comes from the environment variable LAKEBED_FLEET_TOKEN.
    """

    ledger: Annotated[
        str | None,
        option(
            "--ledger",
            metavar="URL",
            help="postgresql://... Default: LAKEBED_FLEET_LEDGER, which no list of processes shows, or a database in "
            "the storage.",
        ),
    ] = None
    log: Annotated[
        str | None,
        option(
            "--log",
            metavar="URL",
            help="Of the log: http://..., nats://a,b,c or postgresql://... Default: LAKEBED_FLEET_LOG.",
        ),
    ] = None
    advertised: Annotated[
        str | None, option("--advertised", metavar="URL", help="Where others reach it. Default: where it listens.")
    ] = None
    grace_ms: Annotated[
        int, option("--grace-ms", min=0, help="Milliseconds in which a put that was sent may still take effect.")
    ] = ControlOptions().grace_ms
    take_over: Annotated[
        bool,
        option(
            "--take-over",
            help="Take over from an owner of the ledger whose lease is live. That process can no longer write.",
        ),
    ] = False

    def run(self) -> None:
        http = self.http_options()
        log_url = self.log or os.environ.get(LOG_VARIABLE)
        if not log_url:
            raise InvalidRequest(
                f"A control plane needs the log's URL: give --log, or set {LOG_VARIABLE}. Start an embedded log with "
                f"lakebed fleet log {self.url}.",
                kind="no_log",
            )
        ledger_url = check_ledger_url(self.ledger or os.environ.get(LEDGER_VARIABLE) or None)
        check_log_url(log_url)
        self.watch_parent()
        lake = lakebed.open(self.url, storage_options=self.storage_options)
        root = str(parse_url(self.url))
        ledger = "kv" if ledger_url is None else "postgresql"
        shown_log = without_credentials(log_url)
        environment, answers_at, decides = Environment(), "", False

        def nodes(record: NodeRecord) -> NodePort:
            return HttpNode(record.url, token=self.token, read_s=_NODE_S, environment=environment)

        def started(url: str) -> None:
            nonlocal answers_at
            answers_at = self.advertised or url
            tell()
            self.started("control plane", answers_at, owns="ledger" if ledger == "kv" else "")

        def owned() -> None:
            nonlocal decides
            decides = True
            tell()

        def tell() -> None:
            # Do not start as a standby, which cannot answer: clients would lose the control plane that decides.
            if answers_at and decides:
                now_ms = environment.clock.now_ms()
                write_address(lake.store, url=answers_at, log=shown_log, ledger=ledger, now_ms=now_ms)

        code = run_control(
            ControlSettings(
                storage_url=root,
                nodes=nodes,
                ledger=ledger_url,
                token=self.token,
                open_log=lambda: open_log(log_url, token=self.token, environment=environment),
                address=FleetAddress(storage=root, log=shown_log, ledger=ledger),
                storage_options=self.storage_options,
                take_over=self.take_over,
                access_log=self.access_log or None,
                allow_remote=self.allow_remote,
                http=http,
                options=ControlOptions(grace_ms=self.grace_ms),
            ),
            host=self.host,
            port=self.port,
            started=started,
            owned=owned,
        )
        raise exits.Exit(code)


class NodeProcess(ProcessCommand, name="node"):
    """Run a node until interrupted: it serves the tenants that the control plane attaches to it.

    When it is interrupted it commits what it has. Started again with the same folder, it continues the transactions
    that it had open.
    """

    control: Annotated[
        str, option("--control", metavar="URL", help="The control plane; several with commas between them.")
    ]
    local: Annotated[
        Path, option("--local", metavar="FOLDER", help="Folder of its local state, which no other node may use.")
    ]
    name: Annotated[str | None, option("--name", help="Unique in the fleet. Default: the name of the folder.")] = None
    log: Annotated[
        str | None, option("--log", metavar="URL", help="Of the log, with credentials. Default: as the control plane.")
    ] = None
    advertised: Annotated[
        str | None, option("--advertised", metavar="URL", help="Where others reach it. Default: where it listens.")
    ] = None
    memtable_mib: Annotated[
        int, option("--memtable-mib", min=1, help="MiB of memory for rows of all tenants that are in no file yet.")
    ] = NodeOptions().memtable_bytes_max >> 20
    cache_mib: Annotated[int, option("--cache-mib", min=1, help="MiB of memory for cached blocks of all tenants.")] = (
        NodeOptions().cache_bytes >> 20
    )

    def run(self) -> None:
        http = self.http_options()
        self.watch_parent()
        code = run_node(
            NodeSettings(
                control=self.control,
                local=os.fspath(self.local),
                name=self.name,
                token=self.token,
                log=self.log or os.environ.get(LOG_VARIABLE) or None,
                storage_options=self.storage_options,
                advertised=self.advertised,
                access_log=self.access_log or None,
                allow_remote=self.allow_remote,
                http=http,
                options=NodeOptions(memtable_bytes_max=self.memtable_mib << 20, cache_bytes=self.cache_mib << 20),
            ),
            host=self.host,
            port=self.port,
            started=lambda url: self.started("node", url),
        )
        raise exits.Exit(code)


class LogProcess(StorageCommand, ProcessCommand, name="log"):
    """Run the embedded log until interrupted: it keeps rows until they are committed, in databases in the storage.

    One process owns the log; others wait for its end.
    """

    shards: Annotated[
        int | None, option("--shards", min=1, max=256, help="Number of databases of a new log. Default: 1.")
    ] = None
    take_over: Annotated[
        bool,
        option("--take-over", help="Take over from an owner whose lease is live. That process can no longer write."),
    ] = False

    def run(self) -> None:
        http = self.http_options()
        self.watch_parent()
        lakebed.open(self.url, storage_options=self.storage_options)
        code = run_log(
            LogSettings(
                storage_url=str(parse_url(self.url)),
                shards=self.shards,
                token=self.token,
                storage_options=self.storage_options,
                take_over=self.take_over,
                access_log=self.access_log or None,
                allow_remote=self.allow_remote,
                http=http,
            ),
            host=self.host,
            port=self.port,
            started=lambda url: self.started("log", url, owns="log"),
        )
        raise exits.Exit(code)


def without_credentials(url: str) -> str:
    """Return a log's URL without user and password, so that it may be stored."""
    if "@" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
