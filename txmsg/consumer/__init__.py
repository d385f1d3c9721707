"""The common part of consumers of brokers and of logs. Knows neither.

lifecycle       start, run, stop, close; the asynchronous kind, and the one for threads that runs it
options         options of consumers of both sources, declared and checked
subscriptions   topics, tags and their handlers
handler_counts   counts of handlers: calls, durations and exceptions
counts          counts of a consumer, as figures
failures        the future of a message whose handler raised      (pure)
handler_rate    messages that a subscription, or a member, may handle per second
isolation       one handler alone in its process
workers         runs the handlers: a number at once, in order where that is asked, until it is stopped
"""
