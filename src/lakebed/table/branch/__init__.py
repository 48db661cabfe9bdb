"""One branch of a table: its snapshots, tags and manifests, and how a version is resolved."""
