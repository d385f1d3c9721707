"""The gateway for RocketMQ's official clients: their gRPC protocol in front of txmsg's brokers, which need no change.

status     errors as RocketMQ's codes
ids        message ids and receipt handles, which are strings to RocketMQ's clients
limits     RocketMQ's limits of a message
codec      converts messages between RocketMQ and txmsg
filters    a consumer's filter: tags, or SQL
sql92      parses SQL filters (sql92_tokens splits them, sql92_logic evaluates them)
senders    sends, half messages and outcomes
receivers  receives, acknowledgements, refusals, and renewal of messages that push consumers hold
agreements  settings that clients are given
clients    connected clients, and which of them to ask for the outcome of a transaction
signature  signatures of calls
admission   admits every call
guarded_admission   admits calls signed with an access key, as far as rules allow
requests   bounds of requests
unzipped_size   bounds of bodies that are unzipped
routes     routes of topics
tasks      background tasks
answers    counts how calls are answered
api        the service apache.rocketmq.v2.MessagingService
grpc       serves it: HTTP/2, and bounds per client
config     settings of a gateway
parts      which parts figures read
figures    its metrics, and whether it is ready
server     joins all parts and listens
v2         code generated from RocketMQ's .proto files

It is a separate process, and any number of them can run: in Python, a call over HTTP/2 costs several times what it
costs a broker.
"""
