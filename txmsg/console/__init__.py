"""The console: web pages for operators, over one Notify database or several.

Data comes from brokers by the calls that commands use (database.py, txmsg.administration). What changes all the time is
polled by one task per database, and kept for a quarter of an hour (watch.py). A page is a View (views.py): the same
function makes its document and, while a browser looks, the live part of it as server-sent events. What changes
something is an Action (actions.py): it says what it will do before it is posted, and long ones go on as operations
(operations.py).

pages/ has a module for each page, with its views and actions; templates/ their HTML, texts/ all their words in English
and Chinese (texts.py), assets/ what browsers load. What a visitor may do, brokers decide by the token that it gave
(desks.py); login and sessions are those of all pages (txmsg.page). app.py joins all of it, and server.py serves it.

To add a page: a module in pages/ with VIEWS and ACTIONS, named in pages/__init__.py; a template; its texts in both
languages.
"""
