"""What a table may delete, and its deletion: live versions, reachability, expiry, orphans, recovery."""
