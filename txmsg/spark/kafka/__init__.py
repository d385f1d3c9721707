"""Reads a log in Kafka by Spark's own source for Kafka, with the columns and options of the format `metaq`.

read        a read: where it begins and ends, as Spark's source has it
columns     records as messages, in Spark's SQL                        (pure)
topics      which topics are read, as a regular expression             (pure)
properties  how to connect, as Kafka's Java client has it              (pure)
"""
