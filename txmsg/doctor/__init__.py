"""`txmsg doctor`: looks at a running set from outside, and says what is wrong or risky, and what mends it.

finding    what a check finds, and how checks are carried out
database   the Notify database and its server
brokers    brokers, and what they tell of groups, topics and half messages
log        a MetaQ log
groups     consumer groups, of a Notify database or of a log
disk       free space, where the disk is this machine's

A check is a function with a name and one line of documentation, in the tuple CHECKS of its module. It yields what it
finds. Changes nothing.
"""
