"""The way of messages and outcomes to brokers: entries of many callers become one request, sent until each has its
answer.

sender       sends requests until each entry has its answer
batch, waiting, coalescer, thread_lane   entries of callers, and the requests that they become
shards       chooses among several Notify databases
half, begun  half messages of a producer: stored ones, and those on their way
unreported, outcome_queue   outcomes that no caller waits for, and the groups in which they leave
counts, outcome_log, traced, schemas   counts, logs, traces and registered schemas of a producer
"""
