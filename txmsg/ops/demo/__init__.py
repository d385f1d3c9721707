"""The demos: examples run as real processes, some of them killed at bad moments; then the results are verified.

    registration   users register (examples/user_registration)
    trades         a day of trades, live on a page (examples/trade_dashboard)
    lottery        thousands enter within seconds (examples/lottery)
    data_centres   two logs that copy each other (examples/data_centres)
    director       phases of a demo: what happens at which share of the work, and when waiting is given up
    stage          what they run on: a PostgreSQL, a broker, processes
    browser, latency   a browser that watches a page; percentiles of waits
    examples       the examples themselves: in the repository a link, in a wheel their files

`txmsg demo` draws progress and results. Nothing here is needed to use txmsg.
"""
