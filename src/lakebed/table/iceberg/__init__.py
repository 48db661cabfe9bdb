"""The same table for readers of Iceberg: metadata, manifest lists and manifests over the table's own data files."""
