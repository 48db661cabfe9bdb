"""Guarantees of writes through Spark, its streams and pipelines, as far as they are found without a JVM."""

from __future__ import annotations

import numpy as np
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lakebed.errors import OutcomeUnknown
from lakebed.pipeline import carry, increments
from lakebed.pipeline.table_branch import TableBranches
from lakebed.spark import worker
from lakebed.spark.catalog import replace, scans, writes
from lakebed.spark.datasource.stream_source import StreamReader
from lakebed.spark.plan import change_rows, filters, found_rows
from lakebed.spark.streams import stream_commits
from lakebed.spark.tasks import native_writes, tasks
from lakebed.table.commit import presence
from lakebed.table.schema import replace_columns
from lakebed.table.write import write_settings
from mutations.defects import answer, forget, never, pass_on, raise_nothing, returns, see, skip
from mutations.guarantee import Guarantee

NATIVE = "unit/spark/test_native_writes.py"
REPLACEMENTS = "unit/spark/test_replace.py"
REWRITES = "unit/spark/test_rewrites.py"
STREAMS = "unit/spark/test_stream_source.py"
BRANCHES = "behaviour/pipeline/test_table_branch.py"

GUARANTEES = [
    # ---- batches of streams
    Guarantee(
        "A batch that Spark runs again is committed once.",
        answer(stream_commits.commit_batch, stream_commits.find_commit, lambda original, *args: None),
        f"{STREAMS}::test_a_query_that_is_killed_anywhere_commits_each_batch_once",
    ),
    Guarantee(
        "A sink that cannot tell its batches apart is refused.",
        raise_nothing(stream_commits.user_of),
        f"{STREAMS}::test_who_commits",
    ),
    Guarantee(
        "A batch of a stream in SQL is committed once.",
        see(writes.Commit._commit, lambda it: it.batch, None),
        f"{STREAMS}::test_a_batch_in_sql_is_committed_once",
    ),
    Guarantee(
        "A stream does not continue in silence into a table that was dropped and created again.",
        raise_nothing(writes.Batch.check_table),
        f"{STREAMS}::test_a_batch_is_not_committed_into_a_table_that_was_created_again",
    ),
    # ---- columns of a replaced table
    Guarantee(
        "No replacement makes a column NOT NULL, under which a rollback would bring null.",
        raise_nothing(replace_columns._check_nullable),
        f"{REPLACEMENTS}::test_no_column_becomes_not_null",
    ),
    Guarantee(
        "A refused replacement brings no NOT NULL back above rows that were committed without the column.",
        returns(replace._take_back_not_null, None),
        f"{REPLACEMENTS}::test_a_refused_replacement_brings_no_rows_below_a_column_that_is_not_null",
    ),
    Guarantee(
        "Rows that may be null are not committed below a column that is NOT NULL.",
        answer(write_settings.writes_alike, write_settings.list_required_ids, lambda original, *args: set()),
        f"{REPLACEMENTS}::test_rows_that_may_be_null_are_not_committed_below_a_column_that_is_not",
    ),
    # ---- rows that statements change
    Guarantee(
        "A row that a statement changes twice refuses the statement.",
        raise_nothing(found_rows._once),
        f"{REWRITES}::test_a_row_that_is_found_twice",
    ),
    Guarantee(
        "Rows of one file that two tasks found are all marked.",
        answer(found_rows.positions_of, lambda it: it.setdefault, lambda setdefault, name, empty: empty),
        f"{REWRITES}::test_found_rows_are_marked_with_new_ones_in_one_commit",
    ),
    Guarantee(
        "A commit of marked rows refuses when other rows of their files were deleted since they were read.",
        answer(
            writes.Commit._deletes,
            writes.position_changes,
            lambda original, context, found, *, basis: original(
                context, found, basis=writes.Basis(context.snapshots.latest())
            ),
        ),
        f"{REWRITES}::test_rows_that_were_found_before_another_commit",
    ),
    Guarantee(
        "The rows that are written in place of marked ones are those that stay, and no others.",
        answer(worker._replace, lambda it: it.invert, lambda original, deleted: np.ones(len(deleted), np.bool_)),
        f"{REWRITES}::test_found_rows_are_marked_with_new_ones_in_one_commit",
    ),
    # ---- files of tasks
    Guarantee(
        "A file is in the folder of its partition, whatever the task says.",
        raise_nothing(native_writes.changes_of_files),
        f"{NATIVE}::test_a_file_in_the_folder_of_another_partition_is_refused",
    ),
    Guarantee(
        "A static overwrite takes rows of its partition alone.",
        skip(native_writes.changes_of_files, native_writes._check_inside),
        f"{NATIVE}::test_rows_outside_of_an_overwritten_partition_are_refused_and_their_files_deleted",
    ),
    Guarantee(
        "A file with the ids of other columns is refused.",
        pass_on(native_writes.changes_of_files, native_writes.describe_file, same_ids=False),
        f"{NATIVE}::test_a_file_of_other_columns_is_refused",
    ),
    Guarantee(
        "Uploads of a job are staged although an answer was lost.",
        see(tasks._stage, OutcomeUnknown, ZeroDivisionError),
        "unit/spark/test_shipping.py::test_staging_is_tried_again_when_its_answer_is_lost",
    ),
    Guarantee(
        "Rows that the driver commits into a branch while it is reset are no success.",
        returns(presence.is_taken_back, False),
        "unit/spark/test_shipping.py::test_a_reset_in_the_middle_of_a_drivers_commit_is_told[write]",
    ),
    # ---- pipelines
    Guarantee(
        "A run does not publish without its rows, nor rows that its steps did not write.",
        returns(TableBranches._check_work, None),
        (
            f"{BRANCHES}::test_a_table_that_moved_stops_the_publish",
            f"{BRANCHES}::test_only_the_rows_of_the_run_are_published",
        ),
    ),
    Guarantee(
        "A run does not write on top of rows of another run that were not published.",
        raise_nothing(TableBranches._check_left),
        f"{BRANCHES}::test_only_the_rows_of_the_run_are_published",
    ),
    Guarantee(
        "Main of every table is checked before the first table is published.",
        skip(TableBranches.publish, TableBranches._forward),
        f"{BRANCHES}::test_a_table_that_moved_stops_the_publish",
    ),
    Guarantee(
        "An increment that another run merged is refused.",
        answer(increments.commit_identity, increments._claim, lambda original, *args: None),
        "unit/pipeline/test_increments.py::test_the_same_increment_under_another_run_is_refused",
    ),
    Guarantee(
        "Of equal steps of a pipeline as many are not run again as have run.",
        forget(carry._Search.same, lambda it: it._turns),
        "unit/pipeline/test_carry.py::test_a_resumed_run_takes_no_record_over_twice",
    ),
    # ---- reads
    Guarantee(
        "A LIMIT has its rows although some of the first splits are replaced by a merge.",
        see(scans._enough, lambda it: it.is_whole, as_=True),
        "unit/spark/test_catalog.py::test_a_limit_counts_no_rows_that_a_merge_may_replace",
    ),
    Guarantee(
        "Changes of a table with a primary key may lack all values of a deleted row but the key.",
        never(change_rows.change_fields, lambda it: it.keys),
        "unit/spark/test_catalog.py::test_changes_may_lack_all_but_the_key",
    ),
    Guarantee(
        "Trigger.Once reads everything that there is.",
        never(StreamReader.latestOffset, ReadAllAvailable),
        f"{STREAMS}::test_a_trigger_that_wants_everything_gets_it",
    ),
    # ---- filters
    Guarantee(
        "A filter on a day that Spark may have put for another one leaves out no file.",
        returns(filters._may_be_another, False),
        "unit/spark/test_filters.py::test_a_day_that_spark_may_have_put_for_another_is_not_translated",
    ),
]
