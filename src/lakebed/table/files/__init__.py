"""Data files: where they lie, which bucket they are in, how they are written, read and grouped into splits."""
