"""The tailer: what the database sends, and how it reaches the log."""
