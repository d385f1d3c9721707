"""The outbox: messages that no broker took are kept in the business transaction itself, and relayed later.

What a row is: the messages of one transaction that has committed, in order, for one producer group. The transaction has
its fence row like any other; no half message of its id was ever sent.

How a row becomes messages, exactly once: the relay stores its messages as halves of a *new* transaction id, and then,
in one transaction of the business database, writes the fence row of that id and deletes the row. So relaying is the
classic flow, with the deletion as its local transaction. Whatever is killed or not answered, and however many relay at
once: the messages are delivered if and only if the row is deleted, and a row is deleted once.

The same holds for a half that may be stored although no answer came: its id has no fence row, so its check-back says
ROLLBACK.

Order. Of one ordering key and producer group: if a call has returned before another one begins, its messages come
first. Calls that overlap have no order, as without an outbox. Why it holds: a call with an ordering key looks for rows
of its key before it sends a half. If it sees one, it writes its own row, with a greater number, and rows of a key are
relayed in the order of their numbers. If it sees none, then those of all earlier calls were deleted, and so their
halves were stored before; the brokers keep the order of halves. A row that is committed after the look is of a call
that had not returned.

    options     `Outbox`: how long a call waits, and how much is kept
    circuit_breaker   the decision of a call to try the brokers
    state       the state of a producer's outbox
    rows        each statement
    packed      messages as the text of a row
    flow_async  around one call; flow.py is generated from it
    relay       the task that relays
"""
