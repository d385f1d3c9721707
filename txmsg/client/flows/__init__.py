"""The flows of `@transactional_message` around the call of a function.

body         from the arguments of a call to its messages
flow_async, late_async, joined_async   the classic flow; the late flow; that of a transaction that is not ours
halves_async   what the flows need of a producer
guard, sql_text   watch a session while user code runs, and prove its commit
transaction   what sends messages with the commit of a transaction
sent         messages of the late flow, and the savepoints that they go with
outer        refuses outer transactions
undecided    which transactions brokers hold, before the fence is purged
"""
