"""Delivery: which message goes to which member of a group, until it is acknowledged, retried or dead.

config     every setting of delivery                         (values)
retrying   the retries of one group that are in memory       (pure)
ranges     sets of offsets as ranges                         (pure)
inflight   what is in the hands of consumers                 (pure)
keys       which message of an ordering key may be given     (pure)
memory     what all windows hold together                    (pure)
window     the in-flight window of one (group, queue)        (pure)
pause      when delivery stops because everything fails      (pure)
settings   what a person has set for a group                 (values)
members    the members of one group, and how they fare       (pure)
turns      whose queue is read next                          (pure)
values     what crosses the border to the service            (pure)
group      the windows, retries and members of one group     (memory only)
handing    what a queue that is handed over still waits for  (memory only)
holding    when cursors say for how long messages are held   (pure)
state      all groups, and which of their queues are read    (memory only)
database   connections; losing one loses the state
reader     reads messages, segment by segment
failures   writes what became of failed messages
writing    writes cursors, failures, and who holds what
loading    reads where a group stands, and builds its windows
repeating  the roots of its tasks
rounds     what is done again and again
delivery   the Delivery class: what the service and the cluster ask
"""

from txmsg.broker.delivery.config import DeliveryConfig
from txmsg.broker.delivery.delivery import Delivery

__all__ = ["Delivery", "DeliveryConfig"]
