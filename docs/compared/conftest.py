from smtplib import SMTP

import pytest


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent by SMTP, without a server."""
    letters: list[str] = []
    monkeypatch.setattr(SMTP, "connect", lambda *_: (220, b""))
    monkeypatch.setattr(SMTP, "docmd", lambda *_: (221, b""))
    monkeypatch.setattr(SMTP, "sendmail", lambda self, sender, receiver, letter: letters.append(letter))
    return letters
