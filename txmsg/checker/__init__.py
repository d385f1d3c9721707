"""Check-backs and the fence: the outcome of a half message, asked of clients and proven in the business database.

policy       the life of a half message, and when it is checked    (pure)
loop         finds due halves, asks, and passes the outcome on
ports        the Protocols that a broker implements for the loop
listener     the interface through which an application answers: `CheckMessageListener`
fence        the table by which `FenceCheckListener` answers
tables       all tables of txmsg in a business database, and their revisions
connections  connections of drivers, of asyncio and of threads
"""
