"""Paimon's REST catalog over the tables of a lake, below ``/paimon``: Paimon's own clients read and commit through it.

Handlers are thin: they decode a request, call the verb of the table or the lake that `lakebed` itself uses, and encode
its result or its error in the protocol's form. A commit is decided by `lakebed.table.commit.prepared`.
"""
