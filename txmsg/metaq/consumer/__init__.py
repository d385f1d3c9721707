"""Consumers of a log, with handlers or by polling, alike for a path and an address.

pull_consumer, async_pull_consumer  what users make, who poll
push_consumer   what a subscription of an application is, whose messages handlers get
member       what both are: a member of a group, which fetches ahead
options      what only a consumer of a log is told      (pure)
balance      which queues a consumer owns
fetcher      what it fetches, and goes past
lane         what it has of one queue                        (pure)
slots        how many lists are handled at once, which operators may change
workers      has its lanes handled, and keeps what failed
polls        batches for a caller, instead of handlers
retries      messages that failed, as they stand in the group's log  (pure)
"""
