"""Runs the trade dashboard as real processes, kills some of them, and compares the totals of all parts.

supervisor   the demo: phases, and who is killed when
stage        the databases, the log and the processes
health       how the parts are, for the page and the terminal
watching     the page as a browser sees it; browser, what a browser shows
latency      how long figures took until they were stored, and on the page
load         which trades come when, and how much there is in stock; market, what is traded
trading      a load carried out on the trade service
run_service, run_stock   what these processes run
"""
