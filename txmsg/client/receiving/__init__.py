"""How messages get from brokers to handlers, and what became of them back.

links, link  polling and settling, at all brokers; at one
held, epochs   which received messages are still reserved for us
delivery     one message on its way through a handler
queues_held  of which queues messages are in our hands
suspects     messages that are handled alone
received     the value that a handler gets
idempotent, inbox, inbox_handler_async   effects that happen once
"""
