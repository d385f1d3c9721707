"""Topics that know the type of their payloads. Knows neither brokers nor logs.

topic           `Topic`: what it sends with a payload, and how it reads one
codecs          what a payload is in a message, by the kind of its type
text            values as text: JSON bodies, and keys
"""
