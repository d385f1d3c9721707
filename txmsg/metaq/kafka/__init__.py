"""MetaQ's log as topics of Apache Kafka: the engine beyond one machine. Needs `txmsg[kafka]`.

location    the address of a Kafka, and the file of its properties   (pure)
names       topics of txmsg as topics of Kafka                       (pure)
record      messages as records                                      (pure)
errors      what Kafka says, as errors of txmsg
clients     makes producers, consumers and administrators
membership  what Kafka assigns to a member of a group
member      a member, as consumers of a log have it
progress    where groups are, and where they are asked to go
groups      joins, shows, seeks and deletes groups

What Kafka does is not done again here: copies, retention, compaction, groups' membership.
"""
