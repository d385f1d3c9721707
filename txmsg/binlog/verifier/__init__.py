"""Compares a log with the table that it mirrors, offset for offset and byte for byte.

Shares no code with the log or the tailer, so that no mistake can hide by being made twice: the bytes are read as
docs/log_format.md tells, records of Kafka by its client as any reader does, the table by plain SQL. An import-linter
contract keeps it so.
"""
