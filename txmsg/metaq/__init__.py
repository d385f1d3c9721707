"""MetaQ: an ordered log of many queues, usable with no broker, no PostgreSQL and no gRPC.

frame       batches of messages as bytes                     (pure)
batch       what is read, as Arrow or as messages            (pure)
messages    applications' messages as columns                (pure)
commit_log  files of frames
cells       consume queues: a cell per frame
queues      consume queues as the writer has them
keys        hashes of keys, by which messages are found
finding     indexes of keys: made, and looked up
state       small files: which log it is, its checkpoint
topics      what each topic asks for
recovery    what to do with what a crash has left
retention   which files need not be kept
reader      reads queues, in any process
log         the one writer
placing     frames where they are to stand, before they are written
lock        which process that is
opening     what that does with what it finds
access      how a log is used, the same for a path and an address
local       a log in a directory, as `access` has it
waiting     waits for a log to grow
assignment  which member of a group owns which queue         (pure)
groups      members, the queues they own and their offsets, by the locks of group_files
group_logs  the small logs of groups: retries and dead letters

docs/log_format.md names every byte.
"""
