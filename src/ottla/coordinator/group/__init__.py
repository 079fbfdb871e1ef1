"""The group coordinator: membership, rebalancing and committed offsets, on `__consumer_offsets`."""
