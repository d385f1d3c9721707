"""What the clients of brokers and of logs run on. Knows neither.

process        the one background loop of a process, on which the sync classes run
threads        daemon threads for the user's functions
user_function  calls a function of the user's, whatever it does
signals        SIGINT and SIGTERM end a `run`
options        parameters that both have                            (pure)
"""
