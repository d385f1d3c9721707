"""`txmsg worker`: processes that run an application, and the one that supervises them.

process      one of them: runs the application, and reports its state
reports      the reports of processes, and their sums    (pure)
supervisor   starts them, looks at them, ends them
changes      detection of changed files of a program, for development
"""
