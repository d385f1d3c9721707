"""Commands, console, live pages, checks of a running set, and demos: what operators use.

cli        the command `txmsg`
console    the console for operators
page       live pages, their server and their login
doctor     what `txmsg doctor` looks at
demo       the examples, run as real processes
"""
