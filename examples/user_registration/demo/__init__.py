"""Plays the registration example as real processes, kills them at bad moments, and has the result verified.

    supervisor   the play: phases, and who is killed when
    cluster      the service's processes, started again whenever one dies
    stage        the databases, the broker and the subscribers as processes
    users        who registers, how, and how long they waited
    ways         registering the two old ways: calling the subscribers one after the other, or all at once
    crash_points where in the flow a service dies
    run_service, run_subscriber   what the processes run
    web          JSON over HTTP

What it shares with other plays is in examples/play/.

Nothing here is needed to use txmsg: the parts to copy are one directory up.
"""

GROUPS = ("red_packet", "alipay_account", "legality_check", "social_import")
"""The subscribers. Module, consumer group and database of each have this name."""
