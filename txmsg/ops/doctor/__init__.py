"""`txmsg doctor`: looks at a running set from outside, and says what is wrong or risky, and what mends it.

probe      how probes are carried out, and what figures show
database   the Notify database and its server
brokers    brokers, and what they tell of groups, topics and half messages
log        a MetaQ log
groups     consumer groups, of a Notify database or of a log
machine    free space, directories and clocks, where they are this machine's

A probe is a function in the tuple PROBES of its module. It yields what it finds of the checks in txmsg/checks. Changes
nothing.
"""
