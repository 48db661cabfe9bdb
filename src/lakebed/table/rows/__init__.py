"""Changes of rows as users request them: append, upsert, delete, update, overwrite."""
