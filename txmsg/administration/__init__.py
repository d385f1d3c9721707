"""Administration: the values and calls that commands, console and brokers share, each declared once.

groups, dead_letters   groups and dead letters of Notify, and of a log
interface  the operations on them, in both
notify     the operations in Notify, by a broker
log        the operations in a log, in a directory or at the address of its server

Beside it, for a Notify database by a broker, the same for all commands and pages:

topics, schemas, halves   topics; their schemas; half messages
messages, life   single messages, found and erased; the life of one
cluster  brokers, and their figures
settings, alerts, audit   settings at run time; alerts; the audit log
access, rules   users and tokens; rules of access

ask, fields   asking a broker; the fields of a change
log_contents   the state of a log, its topics and their queues
"""
