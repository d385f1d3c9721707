"""Administration: the values that commands, console and brokers share, each declared once, and who can be asked.

groups, dead_letters   of Notify, and of a log
interface  what can be done with them in both
notify     in Notify, by a broker
log        in a log, in a directory or at the address of its server

Beside it, for a Notify database by a broker, the same for all commands and pages:

topics, schemas, halves   topics; their schemas; half messages
messages, life   single messages, found and erased; the life of one
cluster  brokers, and what they export
settings, alerts, audit   settings at run time; alerts; the audit log
access, rules   users and tokens; rules of access

ask, fields   asking a broker; the fields of a change
log_contents   the state of a log, its topics and their queues
"""
