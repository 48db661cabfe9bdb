"""The command that runs the server: serve."""

from __future__ import annotations

from typing import Annotated, Any

from lakebed.cli import arguments, exits, output
from lakebed.cli.grammar import argument, option
from lakebed.cli.loading import load
from lakebed.cli.repo_context import RepositoriesCommand
from lakebed.cli.serving import ServingCommand
from lakebed.repo.model.options import RepositoryOptions


class Serve(RepositoriesCommand, ServingCommand, name="serve"):
    """Serve the repositories of a lake over HTTP, as lakeFS clients expect them, until interrupted."""

    lake: Annotated[str, argument("LAKE", help=arguments.LAKE_HELP, is_lake=True)]
    port: Annotated[int, option("--port", min=0, max=65535, help="0: any free port.")] = 8000
    workers: Annotated[
        int, option("--workers", min=1, help="Processes; more than one needs --metadata postgresql://...")
    ] = 1
    import_from: Annotated[
        list[str] | None,
        option("--import-from", metavar="URL", help="Allow imports of objects below this URL. Repeat it for more."),
    ] = None
    allow_webhook: Annotated[
        list[str] | None,
        option(
            "--allow-webhook",
            metavar="HOST",
            help="Allow webhooks to a host, address or network that is not public; repeat it for more.",
        ),
    ] = None
    access_log: Annotated[
        str,
        option(
            "--access-log",
            metavar="FILE",
            help="Write a line of JSON for each request; - is standard error, '' writes none.",
        ),
    ] = "-"
    s3_key: Annotated[
        str | None,
        option("--s3-key", metavar="FILE", help="Serve S3 too, with the key in this file. A missing file is created."),
    ] = None
    s3_domain: Annotated[
        list[str] | None,
        option(
            "--s3-domain",
            metavar="NAME",
            help="A name of this server, for addresses such as BUCKET.NAME. Repeat it for more.",
        ),
    ] = None
    clients: Annotated[
        bool, option("--clients", help="Print what each client needs to connect. The first start prints it anyway.")
    ] = False
    take_over: arguments.TakeOver = False

    def run(self) -> None:
        def started(server: Any) -> None:
            if self.json:
                output.document(
                    {
                        "endpoint": server.endpoint,
                        "storage": server.storage_url,
                        "access_key_id": server.access_key,
                        "secret_access_key": server.secret,
                    }
                )
            else:
                output.lines(server.lines(clients=self.clients))
            output.flush()

        code = load("lakebed.server.serve").run_server(
            self.lake,
            host=self.host,
            port=self.port,
            access_log=self.access_log or None,
            options=load("lakebed.server.options").ServerOptions(
                tls=self.read_tls(),
                metadata=self.metadata,
                workers=self.workers,
                allow_remote=self.allow_remote,
                storage_options=self.storage_options,
                import_from=self.import_from or (),
                take_over=self.take_over,
                s3_key_file=self.s3_key,
                s3_domains=tuple(self.s3_domain or ()),
                repository_options=RepositoryOptions(
                    webhook_hosts=(*arguments.webhook_hosts(), *(self.allow_webhook or ()))
                ),
            ),
            started=started,
        )
        raise exits.Exit(code)
