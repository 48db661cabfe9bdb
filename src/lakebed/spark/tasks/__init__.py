"""The work of a job's tasks, and the one commit that follows it."""
