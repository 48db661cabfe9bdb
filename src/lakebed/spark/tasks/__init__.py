"""What the tasks of a job do, and the one commit that follows."""
