"""Subscriptions of applications, by both sources: brokers and the log."""
