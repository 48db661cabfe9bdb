"""The same facade over HTTP: repositories behind a lakebed server."""
