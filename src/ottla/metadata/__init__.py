"""The cluster's truth: the store behind a port, the controller's decisions, and the image brokers follow."""
