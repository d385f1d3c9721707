"""What brokers, their clients and the clients of logs have in common. Knows none of them.

process        the one background loop of a process, on which the sync classes run
loops          which event loop that is, and servers' own
background     tasks that outlive the call that starts them
threads        daemon threads for the user's functions
user_function  calls a function of the user's, whatever it does
reason         what is kept of an exception of such a function
signals        SIGINT and SIGTERM end what runs
owners         whose a file is that the system refuses
logs           events that are logged, as text and as JSON
forks          what a forked child does not share with its parent
postgres       sessions with PostgreSQL, and what they rely on
child          a child process: started, awaited, stopped
extras         which extra brings a package that is not installed
lazy           names of a package that load their modules
revisions      directories of SQL files for each revision of a schema
restarts       when what ended is started again                  (pure)
durations      durations and times, as options and people give them (pure)
backoff        when a failed message is retried                     (pure)
"""
