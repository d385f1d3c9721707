"""The application, as INSTALLED_APPS names it."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.exceptions import ImproperlyConfigured


class TxmsgConfig(AppConfig):
    """Its tables are of the label `txmsg`."""

    name = "txmsg.contrib.django"
    label = "txmsg"
    verbose_name = "txmsg"

    def ready(self) -> None:
        checks.register(_check_setting)


def _check_setting(**_: Any) -> list[checks.CheckMessage]:
    """`manage.py check` says what is wrong with the setting TXMSG."""
    from txmsg.contrib.django.configuration import configuration

    try:
        configuration()
    except ImproperlyConfigured as exc:
        return [checks.Error(str(exc), id="txmsg.E001")]
    return []
