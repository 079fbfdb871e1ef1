"""What a running pipeline does: queries, restarts, state, status."""
