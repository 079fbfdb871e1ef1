"""A cluster on this machine whose brokers can be killed, paused, cut off, and given a wrong clock."""
