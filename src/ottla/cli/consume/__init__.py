"""`ottla consume`: print the records of a topic, including Kafka's internal topics."""
