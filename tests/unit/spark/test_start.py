"""What a session changes in the process that starts it."""

from __future__ import annotations

import logging

import pytest

from lakebed.spark.start import query_loggers


def test_the_loggers_of_errors_take_what_pyspark_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made before PySpark logs its first error; loggers of another class would end an error's construction."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        monkeypatch.delitem(logging.Logger.manager.loggerDict, name, raising=False)
    for logger in query_loggers():
        logger.disabled = False
        logger.propagate = False
        logger.handlers.clear()
        logger.addHandler(logging.NullHandler())
        logger.error("a message", errorClass="A_CONDITION")  # type: ignore[call-arg]
