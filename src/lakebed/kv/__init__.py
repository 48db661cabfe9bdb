"""Databases: log-structured key-value stores with one writer, many readers, checkpoints, clones and a collector."""
