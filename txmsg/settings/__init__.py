"""The catalogue of settings, and the sources of their values. Knows no broker, no log and no command."""
