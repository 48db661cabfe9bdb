"""What changed: streams, incremental reads, the audit log."""
