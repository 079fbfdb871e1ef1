"""Checks a Kafka cluster for anomalies: runs clients, injects faults, and checks the history of what they saw."""
