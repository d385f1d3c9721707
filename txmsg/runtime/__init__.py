"""What brokers, their clients and the clients of logs have in common. Knows none of them.

process        the one background loop of a process, on which the sync classes run
threads        daemon threads for the user's functions
handlers       what a consumer subscribes to, and who handles it
user_function  calls a function of the user's, whatever it does
signals        SIGINT and SIGTERM end a `run`
options        parameters that producers and consumers share        (pure)
backoff        when a message that failed comes again               (pure)
"""
