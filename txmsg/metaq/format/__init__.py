"""What stands in the log, as bytes, as Arrow and as messages. Pure.

frame       batches of messages as bytes
batch       what is read, as Arrow or as messages
unreadable  which messages cannot be read, and what an operator is told
readable    columns as tools for data take them
"""
