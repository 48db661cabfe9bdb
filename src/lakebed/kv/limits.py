"""Checks of a writer's settings, made before anything is changed. Pure.

Owns: the limits, and the error messages for settings outside of them and for options of another type.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from lakebed.errors import InvalidRequest
from lakebed.kv.options import DatabaseOptions

T = TypeVar("T")

L0_SST_BYTES_MAX: Final = 1 << 30
"""A log object has at most the rows of one memtable and one batch, in Arrow columns, whose limit is 2 GiB."""

_POSITIVE: Final = (
    "wal_flush_interval_ms",
    "wal_bytes_max",
    "flush_interval_max_ms",
    "l0_sst_bytes",
    "unflushed_bytes_max",
    "l0_count_max",
    "run_file_bytes",
    "block_bytes",
    "file_count_max",
    "manifest_poll_interval_ms",
)
_NOT_NEGATIVE: Final = (
    "wal_flush_spacing_ms",
    "filter_bits_per_key",
    "row_cache_bytes",
    "transaction_history_bytes_max",
)
_MERGES_SEVERAL: Final = ("l0_compaction_count", "run_compaction_count")


def check_type(options: Any, expected: type[T]) -> T:
    """Return the options if they have the expected type. Raises `InvalidRequest`, kind ``wrong_type``."""
    if not isinstance(options, expected):
        raise InvalidRequest(
            f"These options are {expected.__name__}, and {type(options).__name__} was given: write "
            f"kv.{expected.__name__}(...).",
            kind="wrong_type",
        )
    return options


def check_database_options(options: DatabaseOptions) -> None:
    """Raise `InvalidRequest`, kind ``invalid_option``, for a setting that cannot work."""
    check_type(options, DatabaseOptions)
    for names, low in ((_POSITIVE, 1), (_NOT_NEGATIVE, 0), (_MERGES_SEVERAL, 2)):
        for name in names:
            value = getattr(options, name)
            if not isinstance(value, int) or value < low:
                raise InvalidRequest(
                    f"The option {name} is a whole number of at least {low}, and {value!r} was given.",
                    kind="invalid_option",
                    option=name,
                )
    if options.cache_bytes is not None and (not isinstance(options.cache_bytes, int) or options.cache_bytes < 0):
        raise InvalidRequest(
            f"The option cache_bytes is a whole number of at least 0, or None for the cache of the process, and "
            f"{options.cache_bytes!r} was given.",
            kind="invalid_option",
            option="cache_bytes",
        )
    if options.l0_compaction_count > options.l0_count_max:
        raise InvalidRequest(
            f"With l0_count_max={options.l0_count_max} writers wait before level 0 is merged, which happens at "
            f"l0_compaction_count={options.l0_compaction_count}: raise the first or lower the second.",
            kind="invalid_option",
            option="l0_count_max",
        )
    if not 1 <= options.l0_sst_bytes <= L0_SST_BYTES_MAX:
        raise InvalidRequest(
            f"The option l0_sst_bytes is {options.l0_sst_bytes:,}, and {L0_SST_BYTES_MAX:,} are possible: a group of "
            "the log is one Arrow batch.",
            kind="invalid_option",
            option="l0_sst_bytes",
        )
