"""The log in a real Kafka."""
