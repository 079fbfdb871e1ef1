"""What deletes stored records: compaction and retention."""
