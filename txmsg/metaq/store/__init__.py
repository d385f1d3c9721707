"""One log in one directory: its files, its only writer, and its readers in any process.

commit_log  files of frames
cells       consume queues: a cell per frame
queues      consume queues, for the writer
keys        indexes of key hashes, to find messages
state       small files: the log's identity, its checkpoint
topics      settings of each topic
log         the only writer
log_config   settings of a log
end         the end of the log: places, syncs and publishes frames
upkeep      the writer's background work: syncs, checkpoints, retention
lock        which process is the writer
role        whether the log leads or is a copy
ahead       queues whose messages may be read before they are on disk
delayed     delayed messages, as stored
mover       moves delayed messages to their topics when they are due
moving      the mover's thread
recovery    what the writer does on opening after a crash
frames      tells whole frames, a torn end and damage apart
refill      puts messages into a hole
retention   which files can be deleted
reader      reads queues, in any process
growth      waits for a log to grow
"""
