"""Bytes to columns and back: Avro, manifests, binary rows, bitmaps, statistics, the texts of Java. Pure."""
