"""The services that a broker offers: requests become calls, values become replies. Nothing is decided here.

notify        send, end, recall, receive, attach: the calls of clients
admin         half messages, counts and lag
settings      settings at run time: shown, changed, watched
topics        settings of topics, and their contents
groups        consumer groups: listed, changed, moved to other positions
dead_letters  listed, redriven, purged
messages      single messages, found and traced
cluster       the brokers of a database
schemas       schemas of topics, by version
alerts        alerts, silences and receivers
access, rules   users and tokens; rules of access
withheld      hides error texts from callers who may not read the topic

The protocol is in `txmsg/wire/v1`; `broker/services.py` gives each service the parts that it calls. Errors become
frames in `wire/failures.py`, and the bounds of a connection are in `wire/shared.py`, for MetaQ's server, too.
"""
