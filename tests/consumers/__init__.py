"""Subscriptions of applications from both sources: brokers and the log."""
