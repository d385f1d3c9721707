"""Connections of database drivers, without SQLAlchemy: the supported drivers and their differences.

drivers_async   transactions and statements, per driver; drivers.py is generated from it
asyncpg_driver  the same for asyncpg, which has no synchronous kind
opening         opens a connection by an application's function, and finds its driver
engines         SQLAlchemy engines on such connections, for work that txmsg does by itself

Imports no driver: the class of a given connection names it.
"""
