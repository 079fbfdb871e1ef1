"""The consumer: subscription, positions, fetching, and records as objects or Arrow columns."""
