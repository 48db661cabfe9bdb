"""The records of a repository in the key-value store, and the context that every operation works on."""
