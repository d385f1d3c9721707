"""The application that processes of `manage.py txmsg_worker --processes N` run, by the name of `app`."""

from __future__ import annotations

from typing import Final

import django

from txmsg.client.app.application import Txmsg

APP: Final = f"{__name__}:app"
"""Its name for `txmsg worker`. The project is that of DJANGO_SETTINGS_MODULE."""


def app() -> Txmsg:
    """Return the handlers of all modules `handlers` as an application."""
    django.setup()
    from txmsg.contrib.django.subscriptions import application  # reads the settings

    return application()
