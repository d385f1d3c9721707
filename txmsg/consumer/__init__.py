"""The common part of consumers of brokers and of logs. Knows neither.

lifecycle       start, run, stop, close; the asynchronous kind, and the one for threads that runs it
options         what consumers of both sources are told, declared and checked
subscriptions   topics, tags and their handlers
handler_counts   how often and how long handlers were called, and what they raised
counts          what a consumer has done, as figures
failures        what becomes of a message whose handler raised      (pure)
handler_rate    how many messages a subscription, or a member, may handle per second
isolation       one handler alone in its process
workers         what runs the handlers: so many at once, in order where that is asked, until it is stopped
"""
