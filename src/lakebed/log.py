"""Logging: one logger for each package, and records with fields.

Each package has the logger ``lakebed.<package>`` of the standard library: ``lakebed.objects`` (every request, DEBUG);
``lakebed.table``, ``lakebed.kv`` and ``lakebed.repo`` (each new version and each opening for writing, INFO; waiting for
a server, WARNING); ``lakebed.reclaim`` (what was deleted, INFO); ``lakebed.cli``. The message of a record is a fixed
text. The variable parts are in the dictionary ``record.fields``, so that a handler can store them as columns.

Invariants: nothing is printed unless a program adds a handler. A record that no handler wants costs one comparison. No
field contains a secret: URLs are shown without users, passwords and queries, and `redact` removes secrets that the
error of another library repeats. Does not know: where the log goes.
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import msgspec
from typing_extensions import override

_ROOT: Final = "lakebed"
logging.getLogger(_ROOT).addHandler(logging.NullHandler())  # without it, Python prints a library's warnings itself

_USER: Final = re.compile(r"(://)[^/@\s'\"]+@")
_QUERY: Final = re.compile(r"(://[^\s?'\"]*)\?[^\s'\"]*")
_SECRET: Final = re.compile(
    r"((?:secret|password|token|signature|credential|api_?key|access_?key)[\w-]*[\"']?\s*[=:]\s*[\"']?)[^\s,;&\"']+",
    re.IGNORECASE,
)


class Log:
    """The log of one package."""

    __slots__ = ("_logger",)

    def __init__(self, package: str) -> None:
        self._logger = logging.getLogger(f"{_ROOT}.{package}")

    @property
    def is_detailed(self) -> bool:
        """Whether a handler wants single requests."""
        return self._logger.isEnabledFor(logging.DEBUG)

    def debug(self, message: str, /, **fields: Any) -> None:
        """Log a single step. Ask `is_detailed` first if the fields are expensive to compute."""
        if self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug(message, extra={"fields": fields})

    def info(self, message: str, /, **fields: Any) -> None:
        """Log what was done."""
        if self._logger.isEnabledFor(logging.INFO):
            self._logger.info(message, extra={"fields": fields})

    def warning(self, message: str, /, **fields: Any) -> None:
        """Log a condition that the user should know about while it lasts. The command line prints it."""
        if self._logger.isEnabledFor(logging.WARNING):
            self._logger.warning(message, extra={"fields": fields})


def logger(package: str) -> Log:
    """Return the log of a package, such as ``objects``."""
    return Log(package)


def warn(line: str) -> None:
    """Write a line to standard error. Ignore failures: a service must continue without it."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # its disk is full, its reader is gone, it is closed
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


def redact(text: str) -> str:
    """Remove from a text the users, passwords and queries of URLs, and the values of names that denote secrets."""
    return _SECRET.sub(r"\1***", _QUERY.sub(r"\1?***", _USER.sub(r"\1***@", text)))


def write_to(stream: TextIO, *, detailed: bool, json: bool) -> logging.Handler:
    """Write the log to a stream, one line for each record. Return the handler, for `remove`.

    Args:
        detailed: also log every request.
        json: lines are JSON objects.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if json else _Text())
    logging.getLogger(_ROOT).setLevel(logging.DEBUG if detailed else logging.INFO)
    return add(handler)


def add(handler: logging.Handler) -> logging.Handler:
    """Hand records to a handler, until `remove`."""
    logging.getLogger(_ROOT).addHandler(handler)
    return handler


def remove(handler: logging.Handler) -> None:
    """Remove a handler that `write_to` or `add` returned."""
    root = logging.getLogger(_ROOT)
    root.removeHandler(handler)
    root.setLevel(logging.NOTSET)


class _Text(logging.Formatter):
    """``12:00:00.123 lakebed.table committed table=flights snapshot=7``."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        fields = [f"{name}={_cell(value)}" for name, value in getattr(record, "fields", {}).items()]
        return redact(" ".join([time, record.name, record.getMessage(), *fields]))


class _Json(logging.Formatter):
    """``{"time_ms": ..., "logger": "lakebed.table", "message": "committed", "table": "flights"}``."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            name: redact(value) if isinstance(value, str) else value
            for name, value in getattr(record, "fields", {}).items()
        }
        line = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            **fields,
        }
        return msgspec.json.encode({"log": line}, enc_hook=str).decode()


def _cell(value: Any) -> str:
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return repr(text) if " " in text or not text.isprintable() else text
