"""lakeFS's committed files and dumps, read and written, to move repositories from and to lakeFS."""
