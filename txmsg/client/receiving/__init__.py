"""The way of messages from brokers to handlers, and of their results back.

links, link     the links of a consumer, one to each broker; one of them, composed of the parts below
member, shard   state of all links of a consumer; of those of one Notify database
poller, polls   polls for messages while there is room; the poll in progress
poll_sequence   the replies that came, poll after poll
calls           the calls of a link: each is a Receive
fetch_budget    the number of messages that may be fetched
arrivals        the messages in a reply
deliveries      the end of messages: done, failed, or given up
settlements, settling   acknowledgements and refusals; the time at which they are sent
reports         reports of a link to its broker about the messages that came
visibility      extends the visibility timeout of messages whose handlers run for long
unsettled, epochs   received messages that are still reserved for this consumer
awaited, queues_held    queues of which messages are held, before and after a broker asks
suspects        messages that are handled alone
broker_failures   failures of calls, counted and logged
delivery        one message on its way through a handler
received        the value that a handler gets
idempotent, inbox, inbox_handler_async   effects that happen once
sending_handler_async   effects that happen once, and messages that are sent with them
"""
