"""A log for other machines: `txmsg metaq serve`. Not needed for a log in a directory.

server      joins all parts
parts       which of them figures and settings use
server_config   its settings
log_api     reading and appending
fetched     the replies to a fetch                         (pure)
polls       waiting fetches, by queue
group_api   members of groups
copy_api    requests of copies
validation  checks batches from clients                    (pure)
producers   which appends were carried out                 (pure)
placement   many callers' batches in one append
appender    group commit
transfers   clients that receive bytes: their room, and slow ones
sessions    members on other machines
users       the source of users and rules
figures     the values of its metrics
disk        says that the disk is nearly full
readers     threads that read, check and unpack, shared by users

The calls are in `txmsg/wire/v1/metaq.proto`; `metaq/protocol.py` converts them, here and in clients.
"""
