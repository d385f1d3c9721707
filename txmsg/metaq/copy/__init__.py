"""Copies of a log on other machines, byte for byte.

source      what a leader gives away: the bytes from a position on          (reads files)
copies      which copies there are, how far each is, and who waits for them (pure)
beside      what stands beside the frames: options of topics, groups
beginning   a copy that begins, or begins again
copier      copies one log, a request at a time
follower    keeps a copy in step with its leader
promotion   has a copy be the leader

docs/log_format.md, Copies, says what is on disk; docs/protocol.md what goes over the wire.
"""
