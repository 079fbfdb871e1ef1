"""Sockets and frames. Knows nothing of what a frame means."""
