"""The cluster: its brokers, and which of them delivers which queue.

assignment  assigns queues to brokers                           (pure)
leases      the queues this broker may deliver, and until when  (memory only)
clock       notices when the database's clock is set            (pure)
membership  heartbeats, assignment and hand-over, once a second
hints       announces the ends of queues of other brokers
notices     receives notifications of other brokers
registry    the cluster as operators see it, and draining
"""

from txmsg.broker.cluster.hints import Hints
from txmsg.broker.cluster.leases import Leases, OwnQueues
from txmsg.broker.cluster.membership import Membership
from txmsg.broker.cluster.notices import Notices
from txmsg.broker.cluster.registry import Registry

__all__ = ["Hints", "Leases", "Membership", "Notices", "OwnQueues", "Registry"]
