"""A file as the store of the cluster's metadata, for brokers on one host."""
