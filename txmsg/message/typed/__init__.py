"""Topics that know the type of their payloads. Knows neither brokers nor logs.

topic           `Topic`: what it sends with a payload, and how it reads one
names           what a subscription names: a topic, or a pattern of topics
codecs          what a payload is in a message, by the kind of its type
fields          fields of a JSON object by their annotations
outgoing        the message of a value that is sent
text            values as text: JSON bodies, and keys
compatibility   whether readers of one schema can read what another one wrote
merging         several schemas as one
registry        whether a schema may be registered beside earlier versions
asyncapi        AsyncAPI documents
"""
