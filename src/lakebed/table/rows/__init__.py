"""Changes of rows as users ask for them: append, upsert, delete, update, overwrite."""
