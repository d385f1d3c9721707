"""A log at the address of a server, used like one in a directory.

remote_log     the log, with the interface `LogAccess`
remote_member  a member of a group: a session at the server
calls          calls that are repeated until a deadline
"""
