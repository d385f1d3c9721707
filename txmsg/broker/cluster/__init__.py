"""The cluster: which brokers there are, and which of them delivers which queue.

assignment  queues spread over the brokers                      (pure)
leases      what this broker may deliver, and until when        (memory only)
membership  heartbeats, assignment and hand-over, once a second
notices     what brokers tell each other by NOTIFY
registry    all of it for people, and maintenance
"""

from txmsg.broker.cluster.leases import Leases, OwnQueues
from txmsg.broker.cluster.membership import Holder, Membership
from txmsg.broker.cluster.notices import Notices
from txmsg.broker.cluster.registry import Registry

__all__ = ["Holder", "Leases", "Membership", "Notices", "OwnQueues", "Registry"]
