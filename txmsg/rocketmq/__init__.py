"""The gateway of RocketMQ's official clients: their gRPC protocol in front of txmsg's brokers, which stay as they are.

status     what went wrong, as the codes that clients know
ids        message ids, tags, and receipt handles, which are texts to RocketMQ's clients
limits     what RocketMQ takes of a message
codec      messages of both worlds, one as the other
filters    what a consumer wants: tags, or SQL (sql92, of sql92_tokens and sql92_logic)
senders    sends, half messages and outcomes
receivers  receives, acknowledgements, refusals, and the renewal of what push consumers hold
agreements what clients are told to do
clients    who is connected, and whom to ask what became of a transaction
signature  what clients sign calls by
door       who calls: everybody may
guarded    users may, who have signed by an access key, as far as rules allow
requests   bounds of what a call may hold
routes     where a topic is
tasks      what runs beside the calls
api        the service apache.rocketmq.v2.MessagingService
grpc       what serves it: HTTP/2, and the bounds of a client
server     serves the service at a port

It is a process of its own, as many as are needed: a call costs HTTP/2 in Python several times what it costs a broker.
"""
