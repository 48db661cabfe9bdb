"""Paimon's REST catalog of the tables of a lake, below ``/paimon``. Paimon's own clients read and commit through it.

Handlers are thin: they decode a request, call the same verb of the table or the lake as `lakebed` itself, and encode
its result or its error in the protocol's form. `lakebed.table.commit.prepared` decides a commit.
"""
