"""What several handlers share: fetch sessions, error responses, deadlines, checks by request version."""
