"""Shared parts of brokers, their clients and the clients of logs. Knows none of them.

process        the one background loop of a process, on which the sync classes run
loops          event loops: uvloop's if it is installed
background     tasks that outlive the call that starts them
threads        daemon threads for the user's functions
user_function  calls a function of the user's and contains its errors
reason         the stored text of an exception of such a function
signals        SIGINT and SIGTERM end the running work
owners         owners and modes of files that the system refuses
logs           events that are logged, as text and as JSON
forks          resets objects in a forked child
postgres       sessions with PostgreSQL, and their settings
child          a child process: started, awaited, stopped
extras         the extra that brings a package that is not installed
lazy           names of a package that load their modules
revisions      directories of SQL files for each revision of a schema
restarts       delays before a process is restarted             (pure)
durations      durations and times, as options and people give them (pure)
backoff        delays before a failed message is retried        (pure)
"""
