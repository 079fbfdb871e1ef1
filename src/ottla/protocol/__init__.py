"""Kafka's wire protocol: bytes to messages and back, frames, record batches. Pure."""
