"""Delivery: assigns messages to the members of groups until they are acknowledged, retried or dead.

delivery_config  every setting of delivery, and of a group
values           parameters and results of delivery
offsets          sets of offsets: ranges, and those in flight       (pure)
keys             which message of an ordering key is next           (pure)
window           the in-flight window of one queue and group        (pure)
retries          the retries of one group that are in memory        (pure)
late             deliveries whose results come late                 (pure)
members          the members of one group; pauses                   (pure)
group            the windows, retries and members of one group      (memory only)
handover         ordered messages in flight, when a queue moves     (pure)
state            all groups, and which feeds need work; sessions
topics           the queues of topics, from their registry
patterns         the topics that members name by patterns
reader           reads messages, segment by segment
writer           writes cursors and the outcomes of failed messages
loader           loads groups and queues from their cursors
maintenance      the periodic steps
delivery         the Delivery class: what the service and the cluster call
"""

from txmsg.broker.delivery.delivery import Delivery
from txmsg.broker.delivery.delivery_config import DeliveryConfig

__all__ = ["Delivery", "DeliveryConfig"]
