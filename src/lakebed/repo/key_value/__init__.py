"""The key-value store under repositories: one port, and what can stand behind it."""
