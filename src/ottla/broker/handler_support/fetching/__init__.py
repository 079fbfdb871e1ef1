"""What Fetch shares with the replicas' Fetch: sessions, reading, limits."""
