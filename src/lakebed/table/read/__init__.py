"""From a snapshot to rows: scans, pruning, deletion vectors, merging."""
