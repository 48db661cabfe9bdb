"""Planning and running compactions."""
