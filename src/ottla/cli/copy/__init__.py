"""`ottla copy`: copies topics between any two Kafka clusters, exactly once."""
