"""What a job reads, and what travels to its tasks. Pure but for the types of Spark."""
