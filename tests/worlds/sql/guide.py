"""The statements of the guide on Spark SQL, and the results that it shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import PySparkException

GUIDE: Final = Path(__file__).parents[3] / "docs" / "guide" / "spark-sql.md"


def statements(page: str) -> Iterator[tuple[str, list[str]]]:
    """Each statement of the page's SQL blocks, and the lines of its result."""
    for block in re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for statement, results in re.findall(r"([^;]+);\n((?:-- .*\n)*)", block):
            yield statement.strip(), [line.removeprefix("-- ") for line in results.splitlines()]


def text(value: object) -> str:
    """A value as the guide writes it."""
    return "NULL" if value is None else str(value)


def sentence_of(results: list[str]) -> str | None:
    """The beginning of the error that a statement is shown with; None: it returns rows."""
    return results[0].removeprefix("error: ") if results and results[0].startswith("error: ") else None


def check_guide(sql: Callable[[str], list[tuple[Any, ...]]]) -> None:
    """Run all statements: rows in the order that the guide shows; of an error, the beginning of its sentence."""
    result = list(statements(GUIDE.read_text()))
    assert len(result) > 50
    for statement, expected in result:
        sentence = sentence_of(expected)
        if sentence is not None:
            with pytest.raises(PySparkException) as raised:
                sql(statement)
            assert type(raised.value).__name__ in ("AnalysisException", "SparkRuntimeException"), statement
            assert sentence in str(raised.value), statement
            continue
        rows = [" | ".join(map(text, row)) for row in sql(statement)]
        if expected:
            assert rows == expected, statement
