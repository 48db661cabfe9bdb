"""What a repository may delete, and why an object is there."""
