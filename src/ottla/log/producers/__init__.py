"""Producer state of a partition: sequences, open transactions, and its snapshots on disk."""
