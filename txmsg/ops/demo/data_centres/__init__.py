"""Runs two data centres that write locally and follow each other, cuts the line between them, and compares the logs.

copy_run     the demo: when the line is cut and healed, and what must be equal at the end
site_stage   the processes
cuttable_link   the network between the data centres
"""
