"""MetaQ's log as topics of Apache Kafka, for logs that outgrow one machine. Needs `txmsg[kafka]`.

location    the address of a Kafka cluster, and the file of its properties  (pure)
names       topics of txmsg as topics of Kafka                       (pure)
record      messages as records                                      (pure)
batch       records of a partition as messages or as Arrow
errors      Kafka's errors as errors of txmsg
clients     creates producers, consumers and administrators
awaited     waits for calls of Kafka's client
probe       reads single records
scan        reads all records of a partition once
positions   converts between offsets of queues and offsets of partitions
reader      reads many queues continuously
appender    appends messages
transactions   writes records and progress of partitions in one transaction
topics      lists, creates and configures topics
membership  which partitions Kafka assigns to a member of a group
member      a member, as log consumers use it
progress    offsets of groups, and requested seeks
groups      joins, shows, seeks and deletes groups
kafka_log   the log, with the interface `LogAccess`

Kafka itself does the rest: copies, retention, compaction, assignment of partitions.
"""
