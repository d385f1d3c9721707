"""What processes of `manage.py txmsg_worker --processes N` run: the handlers of the project, by the name of `app`."""

from __future__ import annotations

from typing import Final

import django

from txmsg.client.app.application import Txmsg

APP: Final = f"{__name__}:app"
"""Its name for `txmsg worker`. The project is that of DJANGO_SETTINGS_MODULE."""


def app() -> Txmsg:
    """The handlers of all modules `handlers`."""
    django.setup()
    from txmsg.contrib.django.subscriptions import application  # reads the settings

    return application()
