"""A gRPC server on asyncio and h2, with bounds on what clients may use. Independent of RocketMQ.

framing     the gRPC framing of messages: lengths, codes, deadlines
http2       the HTTP/2 state of one connection, without the network
call        a call, as its method sees it
connection  a client's transport, its HTTP/2 and its calls
port        listens, and owns all connections
"""
