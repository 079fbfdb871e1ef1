"""Broker settings: the table of names and defaults, parsing and overrides, listeners."""
