"""Iceberg's REST catalog of the tables of a lake, below ``/iceberg``, for reading.

`lakebed.table.iceberg` makes the metadata of a table when a client requests it. Clients read the files themselves.
"""
