"""`ottla serve`: one broker, or several on one host."""
