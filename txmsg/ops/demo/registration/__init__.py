"""Runs the registration example as real processes, kills them at bad moments, and verifies the result.

registration_run    the demo: its phases, and which process is killed when
cluster       the service's processes, restarted whenever one dies
registration_stage  the databases, the broker and the subscribers, as processes
secure_stage, secure_proof   the same with TLS and users, and the checks of it
users         which users register, how, and how long they wait
ways          registration in the two old ways: calling the subscribers one after the other, or concurrently
crash_points  where in the flow a service dies
run_service, run_subscriber  the processes' programs
web           JSON over HTTP
"""

GROUPS = ("red_packet", "alipay_account", "legality_check", "social_import")
"""The subscribers. Module, consumer group and database of each have this name."""
