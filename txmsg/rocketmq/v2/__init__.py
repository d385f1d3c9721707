"""Generated from messaging.proto by tools/generate.py."""
