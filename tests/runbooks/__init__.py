"""The run-books of docs/runbooks: their commands are executed as printed, on real servers under load."""
