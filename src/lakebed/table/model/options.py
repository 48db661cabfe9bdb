"""Options of a table: which exist, what they mean, and which are refused.

Owns: every known option, with its parser, default and effect; the names are Paimon's. Invariants: an unknown option, an
invalid value and an unsupported value are refused when they are set. A table of another client with unknown options can
still be read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Generic, TypeVar

from lakebed.duration import parse_duration_ms, parse_size_bytes
from lakebed.errors import InvalidRequest, UnsupportedFormat
from lakebed.table.model.option_values import (
    choice,
    integer,
    parse_boolean,
    parse_bucket,
    parse_days_ms,
    parse_directory,
    parse_names,
    parse_period_ms,
    parse_time_of_day_ms,
    parse_weights,
    pattern,
)
from lakebed.texts import format_value

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option.

    `default` is the value of a table that does not set it. Durations are milliseconds, sizes bytes.
    """

    name: str
    default: T
    parse: Callable[[str], T]
    doc: str
    unsupported: tuple[str, ...] = ()
    """Values of the format that lakebed does not implement."""
    immutable: bool = False
    """The option decides the layout of existing files; it can be set only when the table is created."""
    refused: str | None = None
    """What to do instead of using an option that only other clients implement.

    lakebed accepts only its default value: an option that is accepted without effect misleads. In another client's
    table it may have any value: ignoring it loses no row.
    """


_OPTIONS: dict[str, Option[Any]] = {}
_NO_NAMES: Final[tuple[str, ...]] = ()


def _option(name: str, default: T, parse: Callable[[str], T], doc: str, **members: Any) -> Option[T]:
    option = Option(name, default, parse, doc, **members)
    _OPTIONS[name] = option
    return option


def _refuse(name: str, default: T, parse: Callable[[str], T], instead: str) -> None:
    _option(name, default, parse, f"For other clients: {instead}.", refused=instead)


_DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000
_MB: Final = 1 << 20

# Layout. -------------------------------------------------------------------------------------------------------------
BUCKET = _option(
    "bucket",
    -1,
    parse_bucket,
    "Buckets a partition: positive, or -1: none in append tables, dynamic ones with a primary key.",
    immutable=True,
    unsupported=("-2",),
)
DYNAMIC_BUCKET_TARGET_ROW_NUM = _option(
    "dynamic-bucket.target-row-num",
    2_000_000,
    integer(1),
    "Keys a dynamic bucket holds, about, before another is begun.",
)
DYNAMIC_BUCKET_INITIAL_BUCKETS = _option(
    "dynamic-bucket.initial-buckets",
    None,
    integer(1, 32_767),
    "Dynamic buckets of a partition that are filled side by side from the start; default: one after the other.",
)
DYNAMIC_BUCKET_MAX_BUCKETS = _option(
    "dynamic-bucket.max-buckets",
    None,
    integer(-1, 32_767),
    "Dynamic buckets a partition has at most; then they grow beyond their target. -1: any number.",
)
DYNAMIC_BUCKET_ASSIGNER_PARALLELISM = _option(
    "dynamic-bucket.assigner-parallelism",
    None,
    integer(1, 32_767),
    "Spark tasks a partition that place keys into dynamic buckets, each into buckets of its own; default: 1.",
)
BUCKET_KEY = _option(
    "bucket-key",
    _NO_NAMES,
    parse_names,
    "Columns that decide a row's bucket; default: the primary key.",
    immutable=True,
)
BUCKET_FUNCTION = _option(
    "bucket-function.type",
    "default",
    choice("default", "mod", "hive"),
    "What of the bucket key decides the bucket: default hashes it, mod divides a single INT or BIGINT.",
    immutable=True,
    unsupported=("hive",),
)
MERGE_ENGINE = _option(
    "merge-engine",
    "deduplicate",
    choice("deduplicate", "partial-update", "aggregation", "first-row"),
    "How rows of equal primary key become one: deduplicate keeps the newest, first-row the oldest.",
    immutable=True,
)
SEQUENCE_FIELD = _option(
    "sequence.field",
    _NO_NAMES,
    parse_names,
    "Columns that order rows of equal key before the order of arrival does.",
    immutable=True,
)
SEQUENCE_SORT_ORDER = _option(
    "sequence.field.sort-order",
    "ascending",
    choice("ascending", "descending"),
    "Order of the columns of sequence.field.",
    immutable=True,
)
IGNORE_DELETE = _option("ignore-delete", False, parse_boolean, "Drop deletes instead of applying them.")
PARTIAL_UPDATE_REMOVE_ON_DELETE = _option(
    "partial-update.remove-record-on-delete",
    False,
    parse_boolean,
    "With partial-update: a delete removes the whole row.",
    immutable=True,
)
AGGREGATION_REMOVE_ON_DELETE = _option(
    "aggregation.remove-record-on-delete",
    False,
    parse_boolean,
    "With aggregation: a delete removes the whole row instead of taking its values back.",
    immutable=True,
)
ROWKIND_FIELD = _option("rowkind.field", None, str, "Column that holds the row kind.", immutable=True)
TYPE = _option("type", "table", choice("table"), "Kind of table; only plain tables are supported.", immutable=True)
PARTITION_DEFAULT_NAME = _option(
    "partition.default-name",
    "__DEFAULT_PARTITION__",
    str,
    "Folder value of a null or blank partition value.",
    immutable=True,
)
PARTITION_LEGACY_NAME = _option(
    "partition.legacy-name",
    True,
    parse_boolean,
    "How other clients print partition values into folder names.",
    immutable=True,
)
DATA_FILE_DIRECTORY = _option(
    "data-file.path-directory",
    "",
    parse_directory,
    "Folder below the table's that holds all partitions and buckets; empty: the table's own.",
    immutable=True,
)
EXTERNAL_PATHS = _option(
    "data-file.external-paths", _NO_NAMES, parse_names, "URLs of folders outside the table's that new data files go to."
)
EXTERNAL_PATHS_STRATEGY = _option(
    "data-file.external-paths.strategy",
    "none",
    choice("none", "specific-fs", "round-robin", "weight-robin", "entropy-inject"),
    "How the external path of a new file is chosen; none: new files go to the table's own folder.",
)
EXTERNAL_PATHS_SPECIFIC_FS = _option(
    "data-file.external-paths.specific-fs", None, str, "With specific-fs: the scheme of the paths taken."
)
EXTERNAL_PATHS_WEIGHTS = _option(
    "data-file.external-paths.weights",
    None,
    parse_weights,
    "With weight-robin: whole numbers above 0, one for each path, by which they are chosen.",
)

# Data files. ---------------------------------------------------------------------------------------------------------
FILE_FORMAT = _option(
    "file.format",
    "parquet",
    choice("parquet", "orc", "avro"),
    "Format of new data files. lakebed writes parquet.",
    unsupported=("orc", "avro"),
)
FILE_COMPRESSION = _option(
    "file.compression",
    "zstd",
    choice("zstd", "snappy", "lz4", "gzip", "brotli", "none", "uncompressed"),
    "Codec of data files.",
)
FILE_COMPRESSION_ZSTD_LEVEL = _option(
    "file.compression.zstd-level", 1, integer(1, 22), "Level of zstd: 1 is fast, 9 small."
)
FILE_BLOCK_SIZE = _option("file.block-size", None, parse_size_bytes, "Bytes of a Parquet row group.")
TARGET_FILE_SIZE = _option(
    "target-file-size",
    None,
    parse_size_bytes,
    "Size at which a data file is closed; default 128 mb with, 256 mb without primary key.",
)
DATA_FILE_PREFIX = _option(
    "data-file.prefix",
    "data-",
    pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", "a file name of letters, digits, '_', '.' and '-'"),
    "First part of the names of data files.",
)
STATS_MODE = _option(
    "metadata.stats-mode",
    "truncate(16)",
    pattern(r"none|counts|full|truncate\([1-9][0-9]{0,8}\)", "none, counts, full or truncate(<length>)"),
    "Column statistics in manifests: none, counts, full, or truncate(length) to shorten texts.",
)
READ_BATCH_SIZE = _option("read.batch-size", 65_536, integer(1), "Rows a batch when reading.")
WRITE_BUFFER_SIZE = _option(
    "write-buffer-size", 256 * _MB, parse_size_bytes, "Bytes buffered a writer before files are cut."
)
WRITE_ONLY = _option("write-only", False, parse_boolean, "Never compact or expire while writing; a separate job does.")

# Manifests and commits. ----------------------------------------------------------------------------------------------
MANIFEST_FORMAT = _option(
    "manifest.format",
    "avro",
    choice("avro", "orc", "parquet"),
    "Format of manifests. lakebed writes avro.",
    unsupported=("orc", "parquet"),
)
MANIFEST_COMPRESSION = _option("manifest.compression", "zstd", choice("zstd", "zstandard"), "Codec of manifests.")
MANIFEST_TARGET_FILE_SIZE = _option(
    "manifest.target-file-size", 8 * _MB, parse_size_bytes, "Size up to which small manifests are merged."
)
MANIFEST_MERGE_MIN_COUNT = _option(
    "manifest.merge-min-count", 30, integer(2), "Manifests below the target size that make a commit merge them."
)
MANIFEST_FULL_COMPACTION_SIZE = _option(
    "manifest.full-compaction-threshold-size",
    16 * _MB,
    parse_size_bytes,
    "Size of changed manifests at which a commit rewrites all of them.",
)
COMMIT_MAX_RETRIES = _option("commit.max-retries", 1000, integer(0), "Lost races after which a commit gives up.")
COMMIT_TIMEOUT = _option("commit.timeout", None, parse_duration_ms, "Time after which a commit gives up.")
COMMIT_MIN_RETRY_WAIT = _option("commit.min-retry-wait", 10, parse_duration_ms, "Shortest pause after a lost race.")
COMMIT_MAX_RETRY_WAIT = _option("commit.max-retry-wait", 10_000, parse_duration_ms, "Longest pause after a lost race.")
COMMIT_USER_PREFIX = _option("commit.user-prefix", None, str, "First part of generated commit users.")

# Snapshots, tags, consumers, branches. -------------------------------------------------------------------------------
SNAPSHOT_RETAINED_MIN = _option("snapshot.num-retained.min", 10, integer(1), "Newest snapshots expiry always keeps.")
SNAPSHOT_RETAINED_MAX = _option(
    "snapshot.num-retained.max", 2**31 - 1, integer(1), "Snapshots above which the oldest expire whatever their age."
)
SNAPSHOT_TIME_RETAINED = _option(
    "snapshot.time-retained", _HOUR_MS, parse_duration_ms, "Age at which snapshots may expire."
)
SNAPSHOT_EXPIRE_LIMIT = _option("snapshot.expire.limit", 50, integer(1), "Snapshots one run of expiry removes at most.")
TAG_AUTOMATIC_CREATION = _option(
    "tag.automatic-creation",
    "none",
    choice("none", "process-time", "watermark", "batch"),
    "Which clock makes automatic tags; batch tags every batch commit.",
)
TAG_CREATION_PERIOD = _option(
    "tag.creation-period",
    _DAY_MS,
    parse_period_ms,
    "Period of automatic tags: daily, hourly, two-hours, or a duration.",
)
TAG_CREATION_PERIOD_DURATION = _option(
    "tag.creation-period-duration", None, parse_period_ms, "Period of automatic tags as a duration."
)
TAG_CREATION_DELAY = _option("tag.creation-delay", 0, parse_duration_ms, "How long after its period a tag is made.")
TAG_CREATE_TIME = _option(
    "tag.create-time", None, parse_time_of_day_ms, "Time of day 'hh:mm' at which daily tags are made."
)
TAG_CREATE_INTERVAL = _option(
    "tag.create-interval", None, parse_days_ms, "Whole days, at least one, between automatic tags."
)
TAG_RETAINED_MAX = _option(
    "tag.num-retained-max", None, integer(1), "Automatic tags kept; tags a person made never count."
)
TAG_DEFAULT_TIME_RETAINED = _option(
    "tag.default-time-retained", None, parse_duration_ms, "Lifetime of tags made without one."
)
TAG_AUTOMATIC_COMPLETION = _option(
    "tag.automatic-completion", False, parse_boolean, "Make the tags of missed periods too."
)
TAG_TIME_EXPIRE_ENABLED = _option(
    "tag.time-expire-enabled", True, parse_boolean, "Whether expiry of tags looks at lifetimes."
)

# Reading. ------------------------------------------------------------------------------------------------------------
SOURCE_SPLIT_TARGET_SIZE = _option("source.split.target-size", 128 * _MB, parse_size_bytes, "Bytes a split aims at.")
SOURCE_SPLIT_OPEN_FILE_COST = _option(
    "source.split.open-file-cost", 4 * _MB, parse_size_bytes, "Least bytes a file counts for."
)

# Compaction and changelog. -------------------------------------------------------------------------------------------
COMPACTION_MIN_FILES = _option(
    "compaction.min.file-num", 5, integer(2), "Small files that make an append bucket worth compacting."
)
COMPACTION_MAX_FILES = _option("compaction.max.file-num", 50, integer(2), "Files one compaction takes at most.")
COMPACTION_SIZE_RATIO = _option(
    "compaction.size-ratio", 1, integer(0), "Percent by which sorted runs may differ and be merged."
)
COMPACTION_MAX_SIZE_AMPLIFICATION = _option(
    "compaction.max-size-amplification-percent", 200, integer(0), "Percent of extra data at which all runs are merged."
)
COMPACTION_SORTED_RUN_TRIGGER = _option(
    "num-sorted-run.compaction-trigger", 5, integer(2), "Sorted runs of a bucket that make it worth compacting."
)
LEVEL_COUNT = _option("num-levels", None, integer(2), "Levels of a bucket; default: the trigger plus one.")
CHANGELOG_PRODUCER = _option(
    "changelog-producer",
    "none",
    choice("none", "input", "full-compaction", "lookup"),
    "What writes changelog files of a table with a primary key: input (each write), full-compaction, or nothing.",
    unsupported=("lookup",),
)
CHANGELOG_FILE_PREFIX = _option("changelog-file.prefix", "changelog-", str, "Prefix of the names of changelog files.")
DELETION_VECTORS = _option(
    "deletion-vectors.enabled",
    False,
    parse_boolean,
    "Mark deleted rows in files of their own, and leave them out when the table is compacted.",
)
VECTORS_MERGE_ON_READ = _option(
    "deletion-vectors.merge-on-read",
    False,
    parse_boolean,
    "Primary-key tables with deletion vectors: read rows before a compaction has marked the older rows of their keys.",
)
ROW_TRACKING = _option(
    "row-tracking.enabled",
    False,
    parse_boolean,
    "Give every row an id for life.",
    unsupported=("true",),
    immutable=True,
)
DATA_EVOLUTION = _option(
    "data-evolution.enabled",
    False,
    parse_boolean,
    "Columns of one row in several files.",
    unsupported=("true",),
    immutable=True,
)

# Options that only other clients implement. --------------------------------------------------------------------------
_NO_STREAMS: Final = "lakebed keeps no progress of streams"
_NO_CHANGELOGS: Final = "a changelog expires with its snapshot"
_NO_METASTORE: Final = "lakebed registers nothing in a metastore"
_refuse("path", None, str, "the catalog says where a table is")
_refuse("auto-create", False, parse_boolean, "create tables with create_table")
_refuse("write-buffer-spillable", True, parse_boolean, "lakebed writes files when the buffer is full and never spills")
_refuse("commit.force-compact", False, parse_boolean, "compact with compact(), in a process of its own if you like")
_refuse("snapshot.ignore-empty-commit", True, parse_boolean, "a commit without changes makes no snapshot")
_refuse("dynamic-partition-overwrite", None, parse_boolean, "pass dynamic=True or dynamic=False to each overwrite")
_refuse("snapshot.expire.execution-mode", "sync", choice("sync", "async"), "expiry runs when it is called")
_refuse(
    "snapshot.clean-empty-directories",
    False,
    parse_boolean,
    "object stores have no folders, and empty local folders do no harm",
)
_refuse("changelog.num-retained.min", None, integer(1), _NO_CHANGELOGS)
_refuse("changelog.num-retained.max", None, integer(1), _NO_CHANGELOGS)
_refuse("changelog.time-retained", None, parse_duration_ms, _NO_CHANGELOGS)
_refuse(
    "tag.period-formatter",
    "with_dashes",
    choice("with_dashes", "without_dashes", "without_dashes_and_spaces"),
    "names of digits alone would read as snapshot ids",
)
_refuse("tag.batch-customized-name", None, str, "tags of batch commits are named after their day")
_refuse("consumer-id", None, str, _NO_STREAMS)
_refuse("consumer.expiration-time", None, parse_duration_ms, "a consumer holds its snapshots until it is deleted")
_refuse("consumer.mode", "exactly-once", choice("exactly-once", "at-least-once"), _NO_STREAMS)
_refuse("consumer.ignore-progress", False, parse_boolean, _NO_STREAMS)
_refuse("branch", "main", str, "open the branch with branch=")
_refuse(
    "scan.mode",
    "default",
    choice(
        "default",
        "latest-full",
        "latest",
        "from-snapshot",
        "from-snapshot-full",
        "from-timestamp",
        "full",
        "incremental",
    ),
    "a read takes version= or timestamp_ms=",
)
_refuse("scan.tag-name", None, str, "a read takes version='tag.<name>'")
_refuse("scan.snapshot-id", None, integer(1), "a read takes version=<id>")
_refuse("scan.version", None, str, "a read takes version=")
_refuse("scan.timestamp", None, str, "a read takes timestamp_ms=")
_refuse("scan.timestamp-millis", None, integer(0), "a read takes timestamp_ms=")
_refuse("scan.manifest.parallelism", 16, integer(1), "lakebed chooses how many manifests it reads at once")
_refuse("scan.fallback-branch", None, str, "a read is of one branch")
_refuse("compaction.optimization-interval", None, parse_duration_ms, "full compactions run when they are called")
_refuse("num-sorted-run.stop-trigger", None, integer(2), "writers never wait for compactions")
_refuse("compaction.force-up-level-0", False, parse_boolean, "compact(full=True) takes every file")
_refuse("file-index.bloom-filter.columns", _NO_NAMES, parse_names, "lakebed builds no bloom filters")
_refuse("metastore.partitioned-table", False, parse_boolean, _NO_METASTORE)
_refuse("metastore.tag-to-partition", None, str, _NO_METASTORE)

OPTIONS: Final[Mapping[str, Option[Any]]] = _OPTIONS
"""Every option by its name."""

COLUMN_PREFIXES: Final[Mapping[str, str]] = {
    "fields.": "columns have no aggregate functions or options of their own",
    "parquet.": "lakebed sets the options of Parquet files itself",
    "orc.": "lakebed writes Parquet files only",
    "file.compression.per.level": "files of all levels are compressed alike",
    "file.format.per.level": "lakebed writes Parquet files only",
}
"""Beginnings of the names of more options that only other clients implement, each with the reason for refusing them."""

KEPT_PREFIXES: Final = ("pipelines.",)
"""Beginnings of names of properties without a meaning for tables, which are kept: Spark's Declarative Pipelines."""

OTHER_FORMATS: Final = frozenset(
    ("delta", "format", "gc", "history", "hive", "hoodie", "iceberg", "lakebed", "paimon", "spark", "write")
)
"""First parts of the names of properties that control other formats and engines.

A table that kept them would seem to obey them.
"""

IMMUTABLE_OPTIONS: Final = frozenset(name for name, option in OPTIONS.items() if option.immutable)
"""Options that can be set only when a table is created."""


_FIRST_PARTS: Final = sorted(
    {name.partition(".")[0] for name in (*OPTIONS, *COLUMN_PREFIXES, *KEPT_PREFIXES)} | OTHER_FORMATS
)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of one table, parsed when they are read.

    Args:
        values: the options of the schema; unknown names are allowed.
    """

    values: Mapping[str, str] = field(default_factory=dict)

    def get(self, option: Option[T]) -> T:
        """The option's value, or its default. Raises `InvalidRequest`: the table has an invalid value."""
        return _parse(option.name, option, self.values[option.name]) if self.is_set(option) else option.default

    def is_set(self, option: Option[Any]) -> bool:
        """Whether the table sets the option."""
        return option.name in self.values


def _parse(name: str, option: Option[T], text: str) -> T:
    try:
        return option.parse(text)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"Option {name!r} = {format_value(text)} is invalid: {error.message} ({option.doc})",
            kind="invalid_option",
            option=name,
        ) from error


def check_option_names(names: Iterable[str]) -> None:
    """Raise `InvalidRequest`, with the nearest name, for names that are neither options nor the user's own."""
    for name in names:
        if name not in OPTIONS and not name.startswith((*COLUMN_PREFIXES, *KEPT_PREFIXES)) and not is_users(name):
            raise _unknown(name)


def is_users(name: str) -> bool:
    """Whether a property is the user's own, such as ``team.contact``. It has no meaning for a table and is kept.

    It is the user's own if its first part, up to the first dot, is neither that of an option nor of another format's
    property. If it is similar to one of these, it is a mistake.
    """
    first, dot, rest = name.partition(".")
    return bool(first.strip() and dot and rest.strip()) and not get_close_matches(
        first.lower(), _FIRST_PARTS, cutoff=0.8
    )


def check_options(
    values: Mapping[str, str], *, primary_keys: Collection[str] = (), accepted: tuple[str, ...] = ()
) -> None:
    """Refuse options that lakebed does not implement, when they are set.

    Args:
        values: the options.
        primary_keys: of the table.
        accepted: beginnings of names that the table's merge engine implements.

    Raises `InvalidRequest`: an unknown option (suggests the nearest), an invalid or unsupported value, or options that
    contradict the kind of table.
    """
    check_option_names(values)
    for name, text in values.items():
        if not isinstance(text, str):
            raise InvalidRequest(
                f"Option {name!r} must be text, not {format_value(text)}.", kind="invalid_option", option=name
            )
        option = OPTIONS.get(name)
        if option is None:
            if name.startswith((*accepted, *KEPT_PREFIXES)) or is_users(name):
                continue
            raise option_error(
                name, text, next(why for start, why in COLUMN_PREFIXES.items() if name.startswith(start))
            )
        value = _parse(name, option, text)
        if option.refused is not None and value != option.default:
            raise option_error(name, text, option.refused)
        if text.strip().lower() in option.unsupported:
            raise option_error(name, text)
    options = TableOptions(values)
    if options.is_set(BUCKET) and options.get(BUCKET) > 0 and not primary_keys and not options.get(BUCKET_KEY):
        raise InvalidRequest(
            "A table with buckets and without primary key needs option 'bucket-key'.",
            kind="invalid_option",
            option="bucket-key",
        )


def check_writable(values: Mapping[str, str]) -> None:
    """Refuse to write a table with options that lakebed does not implement, perhaps set by another client.

    Unknown options are allowed.

    Raises `InvalidRequest`: an unsupported format, changelog producer, deletion vectors, ...; `UnsupportedFormat`:
    manifests of another format than Avro.
    """
    for name, text in values.items():
        option = OPTIONS.get(name)
        if option is not None and text.strip().lower() in option.unsupported:
            if option is MANIFEST_FORMAT:
                raise UnsupportedFormat(
                    f"The table keeps its manifests as {text}; this version of lakebed writes Avro only: nothing was "
                    "written.",
                    kind="unsupported_option",
                    option=name,
                )
            raise option_error(name, text)


def option_error(name: str, text: str, why: str = "") -> InvalidRequest:
    """The error for a value of the format that lakebed does not implement."""
    return InvalidRequest(
        f"Option {name!r} = {format_value(text)} is not supported by this version of "
        f"lakebed{': ' + why if why else ''}.",
        kind="unsupported_option",
        option=name,
    )


def _unknown(name: str) -> InvalidRequest:
    nearest = get_close_matches(name, list(OPTIONS), n=1, cutoff=0.6)
    hint = (
        f": did you mean {nearest[0]!r}?"
        if nearest
        else ". A property of your own begins with a word of your own and a dot, such as 'team.contact'."
    )
    return InvalidRequest(f"Option {name!r} is not known{hint}", kind="unknown_option", option=name)
