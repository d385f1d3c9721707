"""The catalogue of settings, and where their values come from. Knows no broker, no log and no command."""
