"""Who is connected: TLS contexts of listeners, SASL exchanges, users and tokens."""
