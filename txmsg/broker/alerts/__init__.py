"""Alerts that brokers raise themselves, for those without Prometheus.

conditions   whether a rule holds, over the figures of a moment          (pure)
states       pending, firing, resolved; who is told, and when            (pure)
alerts_config   thresholds and times, as settings
file         receivers and rules of an operator's own, from a file
observing    figures that the database has, and SQL of an operator's own
receivers    webhook, e-mail, command
alerting     the loops: looks, writes what changes, delivers notifications

The state is in the Notify database (txmsg/broker/store/alerts.py). No broker remembers anything but counters.
"""
