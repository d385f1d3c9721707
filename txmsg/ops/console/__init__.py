"""The console: web pages for operators, over one or more Notify databases.

app       the HTTP application, which joins the other parts
server    serves it
database  calls to the brokers of a Notify database
logs      MetaQ logs
calls     runs blocking calls on threads
database_poller   polls brokers, and keeps the last quarter of an hour
user_databases   what each visitor works with: brokers, asked with the visitor's token
identity  the visitor's user, roles and rights
page_context   a request, as pages see it
views     a page: a function that reads, a template, and live updates
pages     a module for each page, with its views and actions
sections  the entries of the navigation
actions   changes: confirmed first, then done
group_actions  seek and delete, for groups of Notify and of a log
action_links   buttons for actions, or why this visitor may not use them
operations  long-running actions
forms     parses what operators type
body      bodies as text
shown     numbers, sizes and times as text
render    HTML from templates
texts     all words, in English and Chinese

Data comes from brokers, with the calls that commands use (txmsg.administration). One task per database polls it for all
browsers. A view's function makes both the document and, while a browser looks, the live part of it as server-sent
events. An action's dialog says what it will do before it is posted.

templates/ has the pages' HTML, texts/ the words, assets/ the files for browsers. Login and sessions are those of all
pages (txmsg.ops.page); brokers decide by the visitor's token what a visitor may do.

To add a page: a module in pages/ with VIEWS and ACTIONS, listed in pages/__init__.py; a template; its texts in both
languages.
"""
