"""One log in one directory: its files, its one writer, its readers in any process.

commit_log  files of frames
cells       consume queues: a cell per frame
queues      consume queues as the writer has them
keys        hashes of keys, by which messages are found; their indexes
state       small files: which log it is, its checkpoint
topics      what each topic asks for
log         the one writer
config      its settings
end         where frames are placed, synced, and seen
upkeep      what it does by itself: syncs, checkpoints, deletes old files
lock        which process that is
role        whether it leads or is a copy
ahead       queues whose messages may be seen before they are on disk
delayed     which messages wait until they are due
mover       moves them to their topics then
moving      the thread that does so
recovery    what the writer does at its start with what a crash has left
frames      whole ones, and what a crash has left
refill      messages in the place of a hole
retention   which files need not be kept
reader      reads queues, in any process
growth      waits for a log to grow
"""
