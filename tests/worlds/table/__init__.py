"""Tables: a model of them, random histories, and commits of another client."""
