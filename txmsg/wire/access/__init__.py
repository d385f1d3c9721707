"""Access control of connections: authentication, rights and limits. Pure: knows no network, no database and no service.

principal    who is at the other end of a connection
tokens, keys   credentials: tokens; access keys, which sign calls
rules        who may do what, and the rights that add up
permissions  what each method of each service needs
snapshot     users, credentials and rules at one moment
guard        decides by a snapshot who may connect, and do what
limits, rate   what one user may take of a server
failures     slows down those who guess
denied       logs denied calls where there is no audit log
file         users and rules in a file
"""
