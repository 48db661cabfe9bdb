"""Reading changes: streams, incremental reads, the audit log."""
