"""What can be wrong with a running set: one list, read by all who ask.

Alert rules for Prometheus, alerts that brokers raise, `txmsg doctor`, `txmsg db check`, the console's overview and
/readyz take names, severities, reasons and remedies from here.

check        what a check is, and what it finds
conditions   conditions on figures: evaluated over those of a moment, and as PromQL (pure)
thresholds   those that operators set
texts        texts with fields: filled in, for Prometheus, for documentation, in Chinese
catalogue    all checks, and what figures show of them
brokers      checks of brokers, and of what every process has
messages     checks of groups, transactions and segments
database     checks of the Notify database, its server and its mirrors
logs         checks of MetaQ logs, agents, gateways and pages

A check with a condition is evaluated wherever its figures are. Another one has a probe: the code of a reader that looks
and yields what it finds.
"""
