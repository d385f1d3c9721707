"""The flow's own row and its transaction on a connection of a driver, without SQLAlchemy.

rows_async         the fence row and the inbox row; rows.py is generated from it
transaction_async  the transaction, and the proof that it is the one that commits; transaction.py is generated from it
statements         their SQL
"""
