"""Authentication of clients: TLS contexts of listeners, SASL exchanges, users and tokens."""
