"""Requests by hand: raw connections, transcripts, message strategies."""
