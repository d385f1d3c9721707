"""Consumers of a log, by listener or by polling, alike for a path and an address.

consumer, async_consumer  what users make
balancing    which queues a consumer owns
fetching     what it fetches, and goes past
lane         what it has of one queue                        (pure)
handling, working    its handlers
polling      batches for a caller, instead of handlers
retries      messages that failed, as they stand in the group's log  (pure)
dead_letters looked at, handed to the group again, given up
"""
