"""Consumer groups of a log in a directory: the owner of each queue, and its offset.

assignment   which member owns which queue                   (pure)
groups       members, the queues they own and their offsets
files        the locks and small files for these
settings     what operators have set for a group
logs         the small logs of groups: retries and dead letters
"""
