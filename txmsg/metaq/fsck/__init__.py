"""Looks at every byte of a log, and mends what can be mended.

scan         reads every frame, whatever the log holds
attribution  which offsets stood where nothing whole stands
queue_check  compares a queue's cells with its frames
check        the whole log
groups       the same, with the small logs and files of its groups
report       what was found, for people and for JSON
repair       cuts, marks as lost, and recreates
"""
