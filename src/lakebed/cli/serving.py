"""The common part of commands that listen: the address, who may connect, and the certificate."""

from __future__ import annotations

import os
from typing import Annotated

from lakebed.cli.command import Command
from lakebed.cli.grammar import option
from lakebed.errors import InvalidRequest
from lakebed.http.tls import CLEAR_VARIABLE, Tls


class ServingCommand(Command):
    """A command that serves HTTP, or HTTPS, until it is interrupted."""

    host: Annotated[str, option("--host", help="Where to listen.")] = "127.0.0.1"
    tls_certificate: Annotated[
        str | None,
        option("--tls-certificate", metavar="FILE", help="Serve HTTPS with this certificate (PEM, with its chain)."),
    ] = None
    tls_key: Annotated[
        str | None,
        option("--tls-key", metavar="FILE", help="The key of the certificate. Default: in the certificate's file."),
    ] = None
    tls_ca: Annotated[
        str | None,
        option("--tls-ca", metavar="FILE", help="Require a certificate of every client, signed by one of these."),
    ] = None
    allow_remote: Annotated[
        bool, option("--allow-remote", help="Listen to other machines without a certificate. Nothing is encrypted.")
    ] = False

    def read_tls(self) -> Tls | None:
        """Return the certificate to serve with, which clients in this process also show. Raises `InvalidRequest`."""
        if self.tls_certificate is None:
            if self.tls_key is not None or self.tls_ca is not None:
                raise InvalidRequest(
                    "--tls-key and --tls-ca belong to a certificate: give --tls-certificate too.",
                    kind="invalid_certificate",
                )
            if self.allow_remote:
                os.environ.setdefault(CLEAR_VARIABLE, "1")  # a process that listens in clear text may also send so
            return None
        tls = Tls(certificate=self.tls_certificate, key=self.tls_key, client_ca=self.tls_ca)
        tls.context()  # report errors before anything is opened
        tls.export()
        return tls
