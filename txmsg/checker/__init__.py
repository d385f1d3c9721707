"""Check-backs and the fence: the outcome of a half message, asked of clients and proven in the business database.

policy       the life of a half message, and when it is checked    (pure)
loop         finds due halves, asks, and passes the outcome on
ports        what the loop needs of a broker, as Protocols
listener     what an application answers: `CheckMessageListener`
fence        the table by which `FenceCheckListener` answers
tables       all tables of txmsg in a business database, and their revisions
connections  connections of drivers, of asyncio and of threads
"""
