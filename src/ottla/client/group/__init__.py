"""Membership in a consumer group: join, sync, heartbeat, commit, leave."""
