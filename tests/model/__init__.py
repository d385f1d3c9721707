"""A model of the guarantees of txmsg, and random histories that try to violate them.

    make model DURATION=300             # clean, or the shortest history found that is not
    make model PLANT=all                # every planted defect has to be found within a minute
    python -m tests.model --seed 4711 --duration 1

A *history* (`history.py`) is a list of steps made from a seed: sends, halves, local transactions, commits, rollbacks,
UNKNOWNs, copies of old requests, checks, rotations of segments, connections cut before or after a request, batches held
on their way, brokers and clients that die. `play.py` plays it on two real brokers, without connections, and one real
PostgreSQL; several steps are under way at once. `model.py` says what must be true of the record of it: that is the page
to read first. It looks at the tables with SQL of its own (`tables.py`). `plant.py` holds mistakes that a person could
make, to see that each is found; `explore.py` plays on until the time is up, and makes a history that went wrong small.

Not Hypothesis' state machine, though the idea is its: rules there run one after the other and are drawn while they run,
from what was answered. Here most defects lie between steps that overlap, an answer differs from run to run, and a
history that did go wrong need not do so the second time: shrinking by replay would call that flaky. So the steps are
drawn before anything runs (a seed is a history for good), are allowed to be pointless (a copy of what was never sent),
which makes taking some away always possible, and a smaller history is tried twice before it is given up.
"""
