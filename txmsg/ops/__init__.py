"""Commands, console, live pages, checks of a running set, and demos: the tools of operators.

cli        the command `txmsg`
console    the console for operators
page       live pages, their server and their login
doctor     the probes of `txmsg doctor`
demo       the examples, run as real processes
"""
