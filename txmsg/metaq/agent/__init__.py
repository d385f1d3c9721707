"""`txmsg agent`: follows files of lines, and appends their lines to topics of a log.

agent_config   one TOML file: the agent, and its sources
records     bytes of a file as records: lines, or several lines that belong together   (pure)
stream      one file, whatever it is called, and how far it is read
names       which names rotation gives the files of a path
path_follower   the files that a path has had, one after the other
positions   how far each file is read, on disk
log_output   into the log; into a spool while the log is away
source      a thread per source: finds files, reads, hands on
control     settings at run time, from a topic of the log
agent       all sources of a process
figures     what a scraper is told
"""
