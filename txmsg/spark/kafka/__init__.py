"""Reads a log in Kafka by Spark's own source for Kafka, with the columns and options of the format `metaq`.

read        a read, with begins and ends for Spark's source
columns     records as messages, in Spark's SQL                        (pure)
topics      the topics to read, as a regular expression                (pure)
properties  the connection, as Kafka's Java client has it              (pure)
"""
