"""A cluster of real processes under faults, and a checker of everything they observed.

    make chaos DURATION=300 SEED=7     # a verdict on I1 to I6 and I8, with counts of the faults
    make chaos PLANT=lost              # a planted defect: the verdict has to name the invariant it breaks
    make chaos CHAOS_ARGS=--rocketmq   # official clients of RocketMQ, too, through two gateways
    make chaos AWAY=60                 # at the end no broker answers for so long, twice: calls with an outbox go on

Three brokers deliver from one Notify database, whose servers (`servers.py`) are killed, replaced by their standby or
by a backup, and have their clock stepped; a fourth has a second one, which is spared. Each broker reaches its
database through a proxy of `network.py`, and clients reach brokers through others. Producers and consumers are
processes, too; each writes what it did, line by line, to a journal that outlives SIGKILL (`journal.py`). `plan.py`
draws the faults from a seed, `faults.py` commits them, `moments.py` finds the middle of a batch and of an assignment.
In the end everything heals, and when nothing moves any more `judge.py` compares what the journals say with the rows
of the databases: that is the page to read first. What may be missing after a database went back, and by what
evidence, `losses.py` says.

Three services (`chain.py`, `service.py`), each with a database of its own, take an order, its payment and its shipment
along: each consumes, writes and sends on in one transaction, and is killed like the others. `chain_verdict.py` judges
them by plain SQL over the three databases.

With `--rocketmq` two gateways stand beside the brokers of the first database, and processes of RocketMQ's own client
for Python (`guests.py`) send plain messages, message groups, delayed ones and transactions through them, answer checks
by the business database, and receive: push consumers in a group of txmsg's consumers, simple ones in a group of their
own. The judge asks the same of them. A run with them begins when each has taken part.

tests/model tries far more histories of the sending side, without processes. Here the whole is tried, at a slow pace: a
seed repeats the plan of the faults and of the load, not the moments at which the system meets them.
"""
