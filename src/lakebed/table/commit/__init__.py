"""From data files to a snapshot: conflicts, index manifests, the one way a table moves forward."""
