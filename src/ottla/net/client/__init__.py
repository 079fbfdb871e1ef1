"""Connections to brokers: opening, TLS, SASL, requests in flight."""
