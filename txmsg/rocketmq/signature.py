"""The signature that RocketMQ's clients put on each call. Pure: uses neither users nor a clock.

authorization:  MQv2-HMAC-SHA1 Credential=ACCESS_KEY[/REGION/SERVICE], SignedHeaders=x-mq-date-time, Signature=HEX
x-mq-date-time:  20260531T153000Z, or as in RFC 3339

HEX is the HMAC-SHA1, with the secret, of the text of x-mq-date-time and nothing else: an eavesdropper can reuse it for
any call, for as long as its date is accepted.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

_SCHEME: Final = "MQv2-HMAC-SHA1"
_DATE: Final = "%Y%m%dT%H%M%SZ"


class Signature(NamedTuple):
    """A signature as received. digest: the bytes of HEX, given in either case."""

    key_id: str
    date: str
    digest: bytes

    def is_by(self, secret: bytes) -> bool:
        """Return True if it was made with this secret. Takes constant time."""
        return hmac.compare_digest(hmac.digest(secret, self.date.encode(), "sha1"), self.digest)

    def made_at(self) -> float | None:
        """Return the date in seconds since 1970; None if it is invalid. In the short form it may be up to 14 h off.

        Clients write the short form in local time, although it ends in the Z of UTC.
        """
        try:
            return datetime.strptime(self.date, _DATE).replace(tzinfo=UTC).timestamp()
        except ValueError:
            pass
        try:
            made_at = datetime.fromisoformat(self.date)
        except ValueError:
            return None
        return (made_at if made_at.tzinfo else made_at.replace(tzinfo=UTC)).timestamp()


def read_signature(headers: Mapping[str, str]) -> Signature | None:
    """Return the signature in these headers; None if there is none, as for a client without an access key."""
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme != _SCHEME:
        return None
    fields = {name.strip(): value.strip() for name, _, value in (part.partition("=") for part in rest.split(","))}
    key_id = fields.get("Credential", "").partition("/")[0]
    try:
        digest = bytes.fromhex(fields.get("Signature", ""))
    except ValueError:
        return None
    return Signature(key_id, headers.get("x-mq-date-time", ""), digest) if key_id else None
