"""The data of a table without I/O: types, options, paths, predicates."""
