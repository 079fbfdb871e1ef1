"""The Kafka clients that a run uses: Ottla's own, and librdkafka if confluent-kafka is installed."""
