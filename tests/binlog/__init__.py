"""The tailer: changes from the database and their way into the log."""
