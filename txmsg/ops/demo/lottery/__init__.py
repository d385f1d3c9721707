"""Runs the lottery as real processes under a burst of requests, kills and adds some of them, and counts the tickets.

supervisor     the demo: phases, who is killed when, and when there are more printers
stage          the databases and the processes
burst          who comes when, and a client that has them enter
run_activity, run_printing, run_burst   what these processes run
"""
