"""Consumer groups: who owns which queue of a log in a directory, and how far each came.

assignment   which member owns which queue                   (pure)
groups       members, the queues they own and their offsets
files        the locks and small files that say so
logs         the small logs of groups: retries and dead letters
"""
