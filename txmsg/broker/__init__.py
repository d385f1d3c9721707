"""The broker: accepts and delivers messages, on one Notify database.

server       serves until it is stopped, then ends in order
parts        all parts, made in the order in which they need each other
services     which parts answer which calls
config       its settings
api          services of the protocol, for clients and operators
service      validates messages, and returns a result per item
writer       group commit
levels       keeps messages that wait for a standby apart from others
delivery     delivers messages to consumer groups
cluster      the brokers of the database, and which delivers what
clients      attached clients, which answer check-backs (the loop is txmsg.checker)
check_policies, settings, access   kept in step with the database: check policies, settings, users and rules
scheduler    moves delayed messages when they are due
waits        restarts waits when the database's clock is set
segments, retention   opens segments of the message table; drops old ones
admission    rates of topics
erasable     encrypts the bodies of erasable topics
alerts, audit, journal   records for people
figures      metrics
incarnation  drops memory when the database goes back to an earlier state
store        every statement
migrate, migrations   the schema
embedded     a PostgreSQL that comes with the package; brokers do not know of it
findings     checks of the database's server
periodic     repeats a step
"""
