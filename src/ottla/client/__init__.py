"""The client library: admin, producer and consumer, async at heart with a blocking face."""
