"""gRPC as the gateway serves it: on asyncio and h2, with bounds for what clients ask of it. Knows nothing of RocketMQ.

framing    what gRPC puts around messages: lengths, codes, deadlines
http2      HTTP/2 of one connection, without the network
call       a call, as the method sees it that answers it
connection a client's transport, its HTTP/2 and its calls
port       where clients connect, and all their connections
"""
