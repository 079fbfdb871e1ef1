"""`ottla cluster`: brokers, leaders, replicas that are behind, and the calls that move them."""
