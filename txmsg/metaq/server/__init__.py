"""A log for other machines: `txmsg metaq serve`. Nothing here is needed where a log is a directory.

server      put together
config      its settings
log_api     reading and appending
fetched     what a fetch sends                             (pure)
polls       who waits for which queue
group_api   members of groups
copy_api    what copies ask for
validation  what a batch from elsewhere must be            (pure)
producers   which appends were carried out                 (pure)
placement   many callers' batches in one append
appender    group commit
transfers   who takes bytes: their room, and slow ones
sessions    members that are elsewhere
users       where users and rules come from
figures     what a scraper is told

What goes over the wire is `txmsg/wire/v1/metaq.proto`; `metaq/protocol.py` translates it, here and in those who ask.
"""
