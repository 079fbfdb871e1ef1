"""Deletes stored records: compaction and retention."""
