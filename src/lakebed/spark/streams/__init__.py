"""Spark's streams: their options, the commits of their batches, and upserts in `foreachBatch`."""
