"""What brokers, their clients and the clients of logs have in common. Knows none of them.

process        the one background loop of a process, on which the sync classes run
threads        daemon threads for the user's functions
user_function  calls a function of the user's, whatever it does
signals        SIGINT and SIGTERM end what runs
child          a child process: started, awaited, stopped
logs           logging to stderr
lazy           names of a package that load their modules
start          where to begin in the queues of a topic              (pure)
durations      durations and times, as options and people give them (pure)
backoff        when a message that failed comes again               (pure)
"""
