"""The way of messages from brokers to handlers, and of their results back.

links, link     the links of a consumer, one to each broker; one of them, composed of the parts below
member, shard   what is the same for all links of a consumer; for those of one Notify database
poller, polls   polls for messages while there is room; whether one is under way
poll_sequence   which replies came, poll after poll
calls           the calls of a link: each is a Receive
fetch_budget    how much more may be fetched
arrivals        what a reply brings
deliveries      how messages end: done, failed, or given up
settlements, settling   acknowledgements and refusals; when they are sent
reports         what a link tells its broker of the messages that came
visibility      extends the visibility timeout of messages whose handlers run for long
unsettled, epochs   which received messages are still reserved for us
awaited, queues_held    of which queues messages are in our hands, before and after a broker asks
suspects        messages that are handled alone
broker_failures   failures of calls, counted and logged
delivery        one message on its way through a handler
received        the value that a handler gets
idempotent, inbox, inbox_handler_async   effects that happen once
sending_handler_async   effects that happen once, and messages that are sent with them
"""
