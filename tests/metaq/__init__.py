"""MetaQ alone: without broker, database or network."""
