"""Data files: their location, their bucket, writing and reading them, and grouping them into splits."""
