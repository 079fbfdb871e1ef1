"""Offsets and state outside the group: files, databases, snapshot topics, and their mirror in a group."""
