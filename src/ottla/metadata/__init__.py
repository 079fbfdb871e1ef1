"""The metadata of the cluster: the store, the image that brokers follow, and the controller's rules."""
