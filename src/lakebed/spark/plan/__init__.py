"""The plan of what a job reads, and the values that are shipped to its tasks. Pure, except for Spark's types."""
