"""Guarantees of files of other formats: what is taken over shows its rows and stays with its owner; exports."""

from __future__ import annotations

import pyarrow.csv

from lakebed.cli import files
from lakebed.lake import drop, imports
from lakebed.table.commit.commit import CommitRequest
from lakebed.table.exports.run import _check_partitions
from lakebed.table.files import adopt, int96
from lakebed.table.imports import iceberg
from lakebed.table.imports.take_over import (
    _check_in_place,
    check_new_names,
    copy_object,
    take_over,
    without_outside,
)
from mutations.defects import answer, change_arguments, never, pass_on, raise_nothing, replace, returns
from mutations.guarantee import Guarantee

PARQUET = "behaviour/lake/test_import_parquet.py"
ADOPT = "unit/table/test_adopt.py"

GUARANTEES = [
    Guarantee(
        "A partition that another format, or its library, would take for another one is not exported.",
        raise_nothing(_check_partitions),
        "interop/formats/test_exports.py::test_partitions_that_would_become_others",
    ),
    Guarantee(
        "What a failed import discards does not include files that stay with their owner.",
        answer(take_over, without_outside, lambda original, change, outside: change),
        f"{PARQUET}::test_in_place_files_survive_a_refused_commit",
    ),
    Guarantee(
        "A file in a folder that a table could own is not registered in place.",
        raise_nothing(_check_in_place),
        f"{PARQUET}::test_what_is_refused_in_place",
    ),
    Guarantee(
        "A file is registered once, and two files of a partition have two names.",
        raise_nothing(check_new_names),
        f"{PARQUET}::test_what_is_refused_in_place",
    ),
    Guarantee(
        "A copy of another size than its source had is an error.",
        raise_nothing(copy_object),
        f"{PARQUET}::test_a_source_that_is_replaced_meanwhile",
    ),
    Guarantee(
        "A timestamp that nanoseconds do not hold is refused, not imported as another one.",
        returns(int96._fits, True),
        f"{PARQUET}::test_instants_beyond_nanoseconds_are_not_others",
    ),
    Guarantee(
        "A file with a column of another type is refused.",
        returns(adopt._reads_as, True),
        f"{ADOPT}::test_what_does_not_fit_is_refused",
    ),
    Guarantee(
        "A file that may hold nulls where the table may not is refused.",
        answer(adopt.check_columns, adopt._null_count, lambda original, *args: 0),
        f"{ADOPT}::test_what_does_not_fit_is_refused",
    ),
    Guarantee(
        "A file whose columns have the ids of another table is refused where they should be the table's.",
        raise_nothing(adopt.check_columns),
        f"{ADOPT}::test_field_ids",
    ),
    Guarantee(
        "A file is in the partition that its footer shows.",
        raise_nothing(adopt._check_partition),
        f"{ADOPT}::test_a_partition_is_proven",
    ),
    Guarantee(
        "An import that fails drops nothing that another writer was told to be there.",
        replace(
            imports._take_back,
            lambda original, lake, name, first_schema, *, snapshots=(), tags=(): bool(
                lake.drop_table(name, force=True)
            ),
        ),
        f"{PARQUET}::test_an_import_that_fails_leaves_the_rows_of_others",
    ),
    Guarantee(
        "Rows that were acknowledged while a failed import is taken back stay.",
        change_arguments(drop._decide, keep=False),
        f"{PARQUET}::test_rows_that_come_while_an_import_is_taken_back",
    ),
    Guarantee(
        "All processes that finish a take-back do what the first of them has decided.",
        replace(drop._decide, lambda original, folder, mark, *, keep: keep),
        f"{PARQUET}::test_a_collection_and_the_owner_of_a_take_back_decide_alike",
    ),
    Guarantee(
        "A take-back that was cut short is decided by the process that finishes it.",
        never(drop.drop_table, lambda it: it.own),
        f"{PARQUET}::test_rows_that_come_while_an_import_is_taken_back",
    ),
    Guarantee(
        "Of two imports into one table without rows one fills it.",
        pass_on(take_over, CommitRequest, is_first=False),
        f"{PARQUET}::test_two_imports_into_one_new_table",
    ),
    Guarantee(
        "A null list or map of structs does not become an empty one by the library that writes or reads Iceberg.",
        returns(iceberg.would_be_emptied, False),
        (
            "interop/formats/test_exports.py::test_nulls_are_not_exported_as_empty[iceberg-list]",
            "interop/formats/test_iceberg.py::test_null_lists_of_structs_are_not_read_as_empty[True]",
        ),
    ),
    Guarantee(
        "A text of a CSV file, such as NA, and a NaN are not taken for null.",
        pass_on(files.read_file, pyarrow.csv.ConvertOptions, null_values=["", "NA", "NaN"]),
        "cli/test_rows.py::test_words_for_null",
    ),
    Guarantee(
        "Bytes that were printed as JSON are those bytes again when it is read.",
        replace(files._decode_base64, lambda original, texts, kind: texts.cast(kind)),
        "cli/test_rows.py::test_what_read_writes_append_reads[json-lacks2]",
    ),
    Guarantee(
        "An empty line of a CSV file of one column is a null row, as it is written.",
        returns(files._has_one_column, False),
        "cli/test_rows.py::test_empty_lines_of_one_column_are_nulls[False]",
    ),
    Guarantee(
        "An upsert of JSON does not empty a column that no row of it has.",
        returns(files._find_absent, set()),
        "cli/test_rows.py::test_an_upsert_of_a_file_without_a_column_is_refused[json]",
    ),
]
