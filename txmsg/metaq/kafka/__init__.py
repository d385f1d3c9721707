"""MetaQ's log as topics of Apache Kafka: the engine beyond one machine. Needs `txmsg[kafka]`.

location    the address of a Kafka, and the file of its properties   (pure)
names       topics of txmsg as topics of Kafka                       (pure)
record      messages as records                                      (pure)
batch       what is read: records of a partition as messages or as Arrow
errors      what Kafka says, as errors of txmsg
clients     makes producers, consumers and administrators
awaited     waits for calls of Kafka's client
probe       looks at single records
scan        reads all that a partition holds, once
positions   offsets of queues and offsets of partitions, one by the other
reader      reads many queues as they go on
appender    appends messages
transactions   records and how far each partition is, in one transaction
topics      which topics there are, and what they are set to
membership  what Kafka assigns to a member of a group
member      a member, as consumers of a log have it
progress    where groups are, and where they are asked to go
groups      joins, shows, seeks and deletes groups
kafka_log   the log, as `access` has it

What Kafka does is not done again here: copies, retention, compaction, which member has which partition.
"""
