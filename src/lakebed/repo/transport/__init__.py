"""How a verb reaches a repository: in this process, or behind a server."""
