"""Checks every byte of a log, and repairs what can be repaired.

scan         reads every frame, whatever the log contains
attribution  which offsets damaged data had
queue_check  compares a queue's cells with its frames
check        the whole log
groups       the same for the small logs and files of its groups
report       the findings, for people and as JSON
repair       cuts, marks as lost, and recreates
"""
