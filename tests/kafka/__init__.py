"""The log in Kafka, on a real one."""
