"""SASL mechanisms: what client and server exchange to authenticate a user."""
