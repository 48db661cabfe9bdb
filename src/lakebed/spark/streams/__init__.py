"""Streams of Spark: options, commits of batches, upserts of `foreachBatch`."""
