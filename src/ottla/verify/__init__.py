"""Checks a Kafka cluster for anomalies: runs clients, injects faults, and examines the history of what they saw."""
