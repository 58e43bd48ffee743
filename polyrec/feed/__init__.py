"""A feed: updates of rows from a Redis stream or a Kafka topic to a server."""
