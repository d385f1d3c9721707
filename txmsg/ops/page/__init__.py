"""Live pages: figures from a PostgreSQL, pushed to every browser that looks. Knows no figure by name.

A page is a directory with an HTML file of the kit's elements and a style, and words in two languages (page.py). The
figures are read when their database says that there are new ones (watch.py), once for all browsers. What is known at
a moment, of them and of how the parts are (health.py), is a bulletin (board.py); the newest one goes to each browser as
fast as that takes it (feed.py). app.py is what browsers ask for over HTTP; server.py puts all of it together. assets/
runs in the browser.
"""
