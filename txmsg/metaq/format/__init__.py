"""The contents of a log, as bytes, as Arrow and as messages. Pure.

frame       batches of messages as bytes
batch       frames that are read, as Arrow or as messages
unreadable  which messages cannot be read, and the text for an operator
readable    columns in the form that data tools expect
"""
