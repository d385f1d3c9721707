"""Runs the lottery as real processes under a burst of requests, kills and adds some of them, and counts the tickets.

lottery_run    the demo: its phases, which process is killed when, and when printers are added
lottery_stage  the databases and the processes
burst          who comes when, and a client that has them enter
run_activity, run_printing, run_burst   what these processes run
"""
