"""Repositories of lakeFS: its committed files and dumps, read and written, so that a repository moves in and out."""
