"""The admin client: topics, configs, groups, transactions and the cluster."""
