"""What operators see of a broker: metrics, health checks, slow steps of the event loop."""
