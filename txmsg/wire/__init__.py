"""The protocol: calls over connections, their values as bytes, and the access control of each call.

channel, blocking   calls of a client: for asyncio; for threads
connection, shared, frames   one connection, fairly written and bounded; what connections share; the bytes
server, listening, server_connection, server_call, handlers   calls of a server, and their handlers
access       authentication of connections, their rights and limits
tls, tls_transport, credential, caller   certificates; tokens; the caller of the call that is being answered
method, v1   methods; the messages of .proto files, and their methods
values, table, texts, users, changes, start, tags   values of administration as JSON, and types that methods share
codec, columns, headers, data, unpacking   messages as protobuf; bytes that are not copied
sealed, body_keys_query, body_keys   bodies of erasable topics, and requests for their keys
failures     errors on the wire
address, brokers, ports   addresses; the brokers of a database; ports that a server keeps while it is down
"""
