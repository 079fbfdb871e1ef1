"""etcd as the store of the cluster's metadata, for brokers on several hosts."""
