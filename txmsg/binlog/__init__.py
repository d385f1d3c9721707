"""The tailer: mirrors the Notify database into MetaQ from its write-ahead log. Knows a log only as the Protocol
`MirrorSink`, but for `mirror`.

tailer       waits for its turn, runs, and retries
run          one run: compares log and table, streams, appends, acknowledges
pending_queues   the queues of a run: takes rows, refills them from the table, appends them
comparing    compares queues of the log with their table, before anything is written
resume       decides how to continue each compared queue                (pure)
stops        queues that have stopped alone
replication  START_REPLICATION on psycopg
reading      reads the stream on a thread of its own
pgoutput     decodes the messages of the database                       (pure)
rows         the same for rows of messages, the hot path                (pure)
database     the ordinary session, and the translation of its errors
slot, table, mirrors   statements: slot and publication; messages; positions of the mirror
sink         the Protocol of a log that a tailer writes to
status       the state of a mirror; creates and drops it
mirror       joins the tailer and a log
verifier     compares a log with its table, by code of its own
config, progress, figures   settings; counts; metrics
"""
