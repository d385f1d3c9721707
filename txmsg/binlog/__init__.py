"""The tailer: mirrors the Notify database into MetaQ from its write-ahead log. Knows no log but by a Protocol.

pgoutput     what the database sends, as values                         (pure)
rows         rows of messages as bytes, the hot path                    (pure)
resume       how log and table compare                                  (pure)
replication  the stream: START_REPLICATION on psycopg
reading      the same on a thread of its own
database     the ordinary session, and what its errors mean
slot, table, mirrors   statements: slot and publication; messages; how far the mirror is
comparing    the log of queues with their table, before anything is written
sink         what it needs of a log
under_way    queues: what was taken of each waits, is refilled from the table, and appended
tailing      one run: compare, go on, acknowledge
tailer       runs again and again, and stands by
status       the state of a mirror; makes and drops it
"""
