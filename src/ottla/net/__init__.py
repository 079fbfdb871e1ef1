"""Sockets and frames, without interpreting the frames."""
