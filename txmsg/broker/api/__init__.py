"""What a broker offers to clients: requests become calls, values become replies. Nothing is decided here.

notify        send, end, recall, receive, attach: all that clients use
admin         half messages, counts and lag
settings      settings at run time: shown, changed, watched
topics        settings of topics, and what is in them
groups        consumer groups, looked at, changed, and sent elsewhere
dead_letters  listed, redriven, purged
messages      single messages, found and traced
cluster       the brokers of a database
schemas       schemas of topics, by version
alerts        alerts, silences and receivers
access, rules   users and tokens; who may do what
withheld      what of an answer is for those who may read the topic

The protocol stands in `txmsg/wire/v1`; `broker/services.py` gives each service what it asks. Errors as frames are the
work of `wire/failures.py`, and the bounds of a connection of `wire/shared.py`, for MetaQ's server, too.
"""
