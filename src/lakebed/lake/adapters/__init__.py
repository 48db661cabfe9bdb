"""How each kind of store answers what is asked of a whole lake."""
