"""Partition logs on disk: segments, indexes, producer state, retention and compaction. Owns the files."""
