"""Runs the trade dashboard as real processes, kills some of them, and compares the totals of all parts.

trading_run  the demo: its phases, and which process is killed when
trade_stage  the databases, the log and the processes
health_writer   the state of the processes, for the page and the terminal
watching     the page, as a browser shows it
page_totals  reads the page's totals in a browser
figure_latency  how long figures take until they are stored, and shown on the page
load         which trades come when, and how much is in stock
market       goods, sellers, prices and buyers' provinces
trading      runs a load against the trade service
run_service, run_stock   the processes' programs
"""
