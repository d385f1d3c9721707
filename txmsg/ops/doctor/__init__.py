"""`txmsg doctor`: examines a running set from outside, and reports problems, risks and remedies.

probe      runs probes, and reads findings from figures
database   the Notify database and its server
brokers    brokers, and their reports on groups, topics and half messages
log        a MetaQ log
groups     consumer groups, of a Notify database or of a log
machine    free space, directories and clocks, where they are this machine's

A probe is a function in the tuple PROBES of its module. It yields its findings of the checks in txmsg/checks. Changes
nothing.
"""
