"""Real processes for tests: Apache Kafka, PostgreSQL, Spark drivers, copiers, examples to kill."""
