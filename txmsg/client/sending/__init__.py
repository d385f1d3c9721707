"""The way of messages and outcomes to brokers: entries of many callers become one request, sent until each has its
answer.

sender       sends requests until each entry has its answer
batch, waiting, coalescer, thread_lane   entries, and how many callers' become one request
shards       chooses among several Notify databases
half, begun  what a producer gives for half messages: stored ones, and those on their way
unreported, outcome_queue   outcomes that no caller waits for, and when they leave
counts, outcome_log, traced, schemas   what a producer counts, logs, traces and registers
"""
