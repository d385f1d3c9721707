"""Topics that know the type of their payloads. Knows neither brokers nor logs.

topic           `Topic`: makes messages of payloads, and reads them
names           names of subscriptions: a topic, or a pattern of topics
codecs          encoding of payloads, by the kind of their type
fields          fields of a JSON object by their annotations
outgoing        the message of a value that is sent
text            values as text: JSON bodies, and keys
compatibility   compares schemas: can readers of one read messages of the other?
merging         several schemas as one
registry        decides if a schema may be registered beside earlier versions
asyncapi        AsyncAPI documents
"""
