"""Access control of connections: authentication, rights and limits. Pure: knows no network, no database and no service.

principal    the authenticated user of a connection
tokens, keys   credentials: tokens; access keys, which sign calls
rules        allow rules, and the rights that they add up to
permissions  the rights that each method of each service needs
snapshot     users, credentials and rules at one moment
guard        decisions on logins and calls, by a snapshot
limits, rate   limits of one user at a server
failures     delays answers to guessed tokens
denied       logs denied calls where there is no audit log
file         users and rules in a file
"""
