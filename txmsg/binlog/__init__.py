"""The tailer: mirrors the Notify database into MetaQ from its write-ahead log. Knows a log only as the Protocol
`Sink`, but for `mirror`.

tailer       waits for its turn, runs, and retries
run          one run: compares log and table, streams, appends, acknowledges
pending_queues   the queues of a run: what is taken, refilled from the table, appended
comparing    compares queues of the log with their table, before anything is written
resume       decides what to do with each compared queue             (pure)
stops        queues that have stopped alone
replication  START_REPLICATION on psycopg
reading      reads the stream on a thread of its own
pgoutput     decodes what the database sends                            (pure)
rows         the same for rows of messages, the hot path                (pure)
database     the ordinary session, and what its errors mean
slot, table, mirrors   statements: slot and publication; messages; how far the mirror is
sink         what a tailer needs of a log
status       the state of a mirror; creates and drops it
mirror       joins the tailer and a log
verifier     compares a log with its table, by code of its own
config, progress, figures   settings; counts; metrics
"""
