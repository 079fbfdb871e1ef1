"""The producer: records into batches, batches to partition leaders."""
