"""This broker's replicas: leadership, the in-sync set and the high watermark, and requests that wait for them."""
