"""The data of a repository without I/O: names, entries, layout, columns, options."""
