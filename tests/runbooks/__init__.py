"""The run-books of docs/runbooks: their commands run as printed, on real servers under load."""
