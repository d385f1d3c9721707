"""HTTP/2 for the gateway, with h2: streams, headers, windows. Pure: uses no network.

Adds bounds where h2 would keep a client's data, or repeat work for it, without limit.
"""

from __future__ import annotations

from typing import Any, Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import Event, RemoteSettingsChanged
from h2.exceptions import FrameTooLargeError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

_WINDOW_SIZE_BYTES: Final = 1024 * 1024
"""Bytes that a client may send of a call without a reader."""
_CONNECTION_WINDOW_SIZE_BYTES: Final = 4 * 1024 * 1024
"""The same for all calls of a connection."""
_FRAME_HEADER_SIZE_BYTES: Final = 9
_HEADERS_SIZE_BYTES_MAX: Final = 16 * 1024
_HEADER_TABLE_SIZE_BYTES: Final = 4096
"""Bytes of names and values that are remembered for compression: clients may ask for 4 GiB."""
_COUNTED_EVERY: Final = 64

# Headers are not judged: those that matter are looked at anyway, and to look at all of them took a sixth of a call.
_CONFIG: Final = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
)


class Http2(H2Connection):
    """The server side of one connection. calls_max: concurrent calls."""

    MAX_CLOSED_STREAMS = 4096  # else it keeps 65,536 of each connection, which are megabytes

    def __init__(self, calls_max: int) -> None:
        super().__init__(_CONFIG)
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: calls_max,
                SettingCodes.MAX_HEADER_LIST_SIZE: _HEADERS_SIZE_BYTES_MAX,
                SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW_SIZE_BYTES,
            },
        )
        self.decoder.max_header_list_size = _HEADERS_SIZE_BYTES_MAX
        self._open = 0
        self._open_at = -1
        """The newest stream at the last count."""

    @property
    def open_inbound_streams(self) -> int:
        """An upper bound of open streams. h2 counts all of them for each new one, this only for every 64th."""
        begun = (self.highest_inbound_stream_id - self._open_at) // 2
        if begun >= _COUNTED_EVERY or self._open + begun >= self.local_settings.max_concurrent_streams:
            self._open, self._open_at = super().open_inbound_streams, self.highest_inbound_stream_id
            begun = 0
        return self._open + begun

    def initiate_connection(self) -> None:
        """Initiate as h2 does, with a larger window for all calls together."""
        super().initiate_connection()
        self.increment_flow_control_window(_CONNECTION_WINDOW_SIZE_BYTES - self.inbound_flow_control_window)

    def receive_data(self, data: Any) -> list[Event]:
        """Receive as h2 does, but refuse a frame that is too large before it has arrived completely, as h2
        would not.
        """
        events = super().receive_data(data)
        if len(self.incoming_buffer._data) > self.max_inbound_frame_size + _FRAME_HEADER_SIZE_BYTES:
            self.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
            raise FrameTooLargeError("a frame is too large")
        return events

    def forget_settings_without_use(self, event: RemoteSettingsChanged) -> None:
        """Drop unknown settings of the client. h2 would keep up to 65,536, and go through all of them for
        each new one.
        """
        for code in event.changed_settings:
            if not isinstance(code, SettingCodes):
                self.remote_settings.pop(code, None)
        self.encoder.header_table_size = min(self.encoder.header_table_size, _HEADER_TABLE_SIZE_BYTES)

    def going_away(self) -> bytes:
        """Return a request to start no more calls. Not h2's own method, after which the connection would have ended."""
        return GoAwayFrame(0, last_stream_id=self.highest_inbound_stream_id).serialize()

    def _receive_goaway_frame(self, _: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        """Note that the client starts no more calls. Running calls continue; h2 would end the connection."""
        return [], []
