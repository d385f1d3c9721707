"""Alerts that brokers raise themselves, for those without Prometheus.

conditions     evaluates rules over the metrics of a moment            (pure)
states         pending, firing, resolved; when receivers are notified  (pure)
alerts_config  thresholds and times, as settings
file           receivers and rules of an operator's own, from a file
observing      figures that the database has, and SQL of an operator's own
receivers      webhook, e-mail, command
alerting       the loops: evaluate, write changes, deliver notifications

The state is in the Notify database (txmsg/broker/store/alerts.py). No broker remembers anything but counters.
"""
