"""`txmsg worker`: processes that run an application, and the one that supervises them.

process      one of them: runs the application, and reports how it does
reports      what it reports, and what several of them have counted together    (pure)
supervisor   starts them, looks at them, ends them
changes      which files of a program have changed, for development
"""
