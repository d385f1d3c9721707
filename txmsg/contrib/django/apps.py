"""The application, as INSTALLED_APPS names it."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


class TxmsgConfig(AppConfig):
    """The application; its tables have the label `txmsg`."""

    name = "txmsg.contrib.django"
    label = "txmsg"
    verbose_name = "txmsg"

    def ready(self) -> None:
        from txmsg.contrib.django.checks import check_deployment, check_settings  # they read the settings

        checks.register(check_settings)
        checks.register(check_deployment, deploy=True)
