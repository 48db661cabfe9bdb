"""One adapter for each kind of store: the operations of a whole lake on it."""
