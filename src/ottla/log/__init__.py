"""One partition on one disk: segments, indexes, producer state, retention and compaction. Owns the files."""
