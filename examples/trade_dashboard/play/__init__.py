"""Plays the trade dashboard as real processes, kills some of them, and compares what everybody says in the end.

    supervisor   the play: phases, and who is killed when
    stage        the databases, the log and the processes
    health       how the parts are, for the page and the terminal
    watching     the page as a browser sees it; browser, what a browser shows
    latency      how long figures took until they were stored, and on the page
    trading      a load carried out on the trade service
    run_service, run_stock   what these processes run

What it shares with other plays is in examples/play/. Nothing here is needed to use txmsg: the parts to copy are one
directory up.
"""
