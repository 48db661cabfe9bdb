"""Iceberg's REST catalog over the tables of a lake, below ``/iceberg``, for reading.

A table's metadata is made by `lakebed.table.iceberg` when it is asked for; clients read the files themselves.
"""
