"""The broker: one handler per API on top of everything below, and the process around it."""
