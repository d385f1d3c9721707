"""One list of checks: the faults of a running system.

Alert rules for Prometheus, alerts that brokers raise, `txmsg doctor`, `txmsg db check`, the console's overview and
/readyz take names, severities, reasons and remedies from here.

check        `Check` and `Finding`
conditions   conditions on figures: evaluated over a moment's figures, and as PromQL (pure)
thresholds   thresholds that operators set
texts        texts with fields: filled in, for Prometheus, for documentation, in Chinese
catalogue    all checks, and their findings in figures
brokers      checks of brokers, and of all processes
messages     checks of groups, transactions and segments
database     checks of the Notify database, its server and its mirrors
logs         checks of MetaQ logs, agents, gateways and pages

A check with a condition is evaluated wherever its figures are. Another one has a probe: code of a reader that inspects
the system and yields findings.
"""
