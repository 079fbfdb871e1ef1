"""The transactional producer: its states, requests and errors."""
