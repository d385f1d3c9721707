"""A log for other machines: `txmsg metaq serve`. Nothing here is needed where a log is a directory.

running     a server put together
config      its settings
log_api     reading and appending over gRPC
group_api   members of groups over gRPC
arriving    what a batch from elsewhere must be            (pure)
producers   which appends were carried out                 (pure)
placing     many callers' batches in one append
appender    group commit
transfers   who moves bytes: their room, and slow ones
polls       who waits for which queue
sessions    members that are elsewhere

What goes over the wire is `txmsg/wire/v1/metaq.proto`; `metaq/protocol.py` translates it, here and in those who ask.
"""
