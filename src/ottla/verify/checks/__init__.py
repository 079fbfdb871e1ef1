"""The checks of a history. Pure."""
