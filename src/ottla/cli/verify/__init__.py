"""`ottla verify`: checks a Kafka cluster for anomalies, with faults if the cluster is a local one."""
