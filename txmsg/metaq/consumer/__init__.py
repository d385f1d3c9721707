"""Consumers of a log, by listener or by polling, alike for a path and an address.

consumer, async_consumer  what users make
options      what only a consumer of a log is told      (pure)
balance      which queues a consumer owns
fetcher      what it fetches, and goes past
lane         what it has of one queue                        (pure)
workers      has its lanes handled, and keeps what failed
polls        batches for a caller, instead of handlers
retries      messages that failed, as they stand in the group's log  (pure)
"""
