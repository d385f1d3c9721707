"""Connections of database drivers, without SQLAlchemy: which drivers there are, and what each does differently.

drivers_async   transactions and statements, per driver; drivers.py is generated from it
asyncpg_driver  the same of asyncpg, which has no synchronous kind
opening         from what an application's function returns to an open connection and its driver
engines         SQLAlchemy engines on connections that an application's function opens, for what txmsg does by itself

Imports no driver: a connection that is given says what it is.
"""
