"""One log in one directory: its files, its one writer, its readers in any process.

commit_log  files of frames
cells       consume queues: a cell per frame
queues      consume queues as the writer has them
keys        hashes of keys, by which messages are found
finding     indexes of keys: made, and looked up
state       small files: which log it is, its checkpoint
topics      what each topic asks for
log         the one writer
lock        which process that is
ahead       queues whose messages may be seen before they are on disk
opening     what that does with what it finds
recovery    what to do with what a crash has left
refill      messages in the place of a hole
placing     frames where they are to stand, before they are written
retention   which files need not be kept
reader      reads queues, in any process
current     the reader of the log that is there now
waiting     waits for a log to grow
"""
