"""Runs the registration example as real processes, kills them at bad moments, and verifies the result.

supervisor   the demo: phases, and who is killed when
cluster      the service's processes, started again whenever one dies
stage        the databases, the broker and the subscribers as processes
secure_stage, secure_proof    the same with TLS and users, and what that must show
users        who registers, how, and how long they waited
ways         registering the two old ways: calling the subscribers one after the other, or all at once
crash_points where in the flow a service dies
run_service, run_subscriber   what the processes run
web          JSON over HTTP
"""

GROUPS = ("red_packet", "alipay_account", "legality_check", "social_import")
"""The subscribers. Module, consumer group and database of each have this name."""
