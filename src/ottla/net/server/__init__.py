"""The listening side: connections, frames, flow control, fairness, TLS."""
