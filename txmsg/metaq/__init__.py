"""MetaQ: an ordered log of many queues, usable with no broker, no PostgreSQL and no gRPC.

frame       batches of messages as bytes                     (pure)
batch       what is read, as Arrow or as messages            (pure)
commit_log  files of frames
cells       consume queues: a cell per frame
recovery    what to do with what a crash has left
reader      reads queues, in any process
log         the one writer
access      how a log is used, the same for a path and an address
local       a log in a directory, as `access` has it
waiting     waits for a log to grow

docs/log_format.md names every byte.
"""
