"""MetaQ alone: no broker, no database, no network."""
