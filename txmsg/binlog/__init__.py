"""The tailer: mirrors the Notify database into MetaQ from its write-ahead log.

pgoutput   what the database sends, as values     (pure)
"""
