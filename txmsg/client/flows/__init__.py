"""The flows of `@transactional_message` around the call of a function.

body         from the arguments of a call to its messages
flow_async, late_async, joined_async   the classic flow; the late flow; that of a transaction that is not ours
halves_async   the interface of producers that the flows need
guard, sql_text   watch a session while user code runs, and prove its commit
transaction   sends messages with the commit of a transaction
sent         messages of the late flow, and the savepoints that they go with
outer        refuses outer transactions
undecided    the transactions that brokers hold, before the fence is purged
"""
