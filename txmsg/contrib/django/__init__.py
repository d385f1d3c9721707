"""txmsg for Django: messages that share the fate of Django's own transactions, nested ones included.

    INSTALLED_APPS = [..., "txmsg.contrib.django"]
    TXMSG = {"BROKERS": "localhost:7700", "GROUP": "shop"}

and `manage.py migrate`. What an application uses:

transactional_message   decorates a function that sends: docs/how-to/django.md
send                    sends with the block of `atomic` around the call
subscribe, idempotent   decorate handlers, in the module `handlers` of each app; `manage.py txmsg_worker` runs them
producer                for plain messages, which no transaction decides

configuration   the setting TXMSG: its names, values and meanings
checks          the findings of `manage.py check`
databases       the fence and connections of its own for a database of Django
producers       one producer per database
sending         `transactional_message`
joining         `send`
commits         the row that proves a commit, and the report to the broker
rows            the statements, by Django's own connection
handling        `idempotent`
subscriptions   `subscribe`, and the application that a worker runs
worker          the same by a name, for supervised processes
models          the tables as read-only models
tables          the operation of migrations that makes them
migrations      creates the tables
management      the commands of manage.py
apps            the application, for INSTALLED_APPS
test            classes of tests with a real broker
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmsg.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from txmsg.contrib.django.handling import idempotent
    from txmsg.contrib.django.joining import send
    from txmsg.contrib.django.producers import producer
    from txmsg.contrib.django.sending import transactional_message
    from txmsg.contrib.django.subscriptions import subscribe

__all__ = ["idempotent", "producer", "send", "subscribe", "transactional_message"]

_MODULE_OF = {
    "idempotent": "txmsg.contrib.django.handling",
    "producer": "txmsg.contrib.django.producers",
    "send": "txmsg.contrib.django.joining",
    "subscribe": "txmsg.contrib.django.subscriptions",
    "transactional_message": "txmsg.contrib.django.sending",
}

if not TYPE_CHECKING:  # Django imports the package before its settings can be read
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
