"""Copies of a log on other machines, byte for byte.

source      what a leader sends: the bytes from a position on               (reads files)
copies      the copies of a log, their progress, and appends that wait for them (pure)
copy_state   the state beside the frames: options of topics, groups
beginning   starts a copy from an empty log
copier      copies one log, a request at a time
follower    keeps a copy in sync with its leader
promotion   makes a copy the leader

docs/log_format.md, Copies, specifies the files; docs/protocol.md the calls.
"""
