"""Live pages: figures from a PostgreSQL, pushed to every open browser. Knows no figure by name.

A page is a directory with an HTML file of the kit's elements and a style, and words in two languages (page.py). The
figures are read when their database notifies of new ones (watch.py), once for all browsers. A bulletin (board.py) holds
the figures and the health of the parts (health.py) at a moment; the newest one goes to each browser as fast as the
browser takes it (feed.py). app.py serves browsers over HTTP; server.py joins all parts. assets/ runs in the browser.
"""
