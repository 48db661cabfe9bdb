"""From data files to a snapshot: conflict checks, index manifests, and the only function that moves a table forward."""
