"""Records as Arrow columns."""
