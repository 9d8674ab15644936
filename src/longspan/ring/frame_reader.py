"""Frames out of the bytes of a stream, without a socket.

Small frames are read into a common buffer. Once the 20 bytes of a prefix are there, the announced lengths are
checked; a frame that does not fit gets a buffer of its own, into which the rest is read without another copy.
"""

from __future__ import annotations

from longspan.ring.frame import MAX_HANDSHAKE_HEADER_BYTES, PREFIX, Frame, Prefix, read_prefix

COMMON_BYTES = 16 << 10
"""Small frames are read together, one system call for all that are there."""


class FrameReader:
    """Bytes go into `buffer`, `filled` says how many, and `next` gives the frames.

    max_header_bytes, max_payload_bytes: what a frame may have. At first what a handshake needs: none of its frames
    is large or carries tensors, so a stranger cannot make us allocate.
    """

    def __init__(self) -> None:
        self.max_header_bytes = MAX_HANDSHAKE_HEADER_BYTES
        self.max_payload_bytes = 0
        self._common = memoryview(bytearray(COMMON_BYTES))
        self._view = self._common
        self._begin = 0  # of what was not taken yet, in the common buffer
        self._end = 0
        self._prefix: Prefix | None = None  # of the frame that has a buffer of its own

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty, but for a whole frame that was not taken yet."""
        if self._begin:
            self._move()
        return self._view[self._end :]

    def filled(self, count: int) -> None:
        """So many bytes were put into `buffer`."""
        self._end += count

    def next(self) -> Frame | None:
        """The next frame; None when more bytes are needed. Raises ProtocolError, see `frame.read_prefix`."""
        if self._prefix is not None:
            if self._end < len(self._view):
                return None
            prefix, view = self._prefix, self._view
            self._prefix, self._view, self._end = None, self._common, 0
            return prefix.frame(view)
        body = self._begin + PREFIX.size
        if self._end < body:
            return None
        prefix = read_prefix(self._common[self._begin : body], self.max_header_bytes, self.max_payload_bytes)
        after = body + prefix.body_bytes
        if self._end >= after:
            data = memoryview(bytes(self._common[body:after]))
            self._begin = after
            if self._begin == self._end:
                self._begin = self._end = 0
            return prefix.frame(data)
        if after - self._begin > len(self._common):
            self._open(prefix, body)
        return None

    def take_raw(self) -> bytes:
        """The bytes that belong to no frame yet; they are gone from here."""
        raw = bytes(self._view[self._begin : self._end])
        self._prefix, self._view = None, self._common
        self._begin = self._end = 0
        return raw

    def _open(self, prefix: Prefix, body: int) -> None:
        """The frame is larger than the common buffer: it gets one of its own."""
        held = self._end - body
        view = memoryview(bytearray(prefix.body_bytes))
        view[:held] = self._common[body : self._end]
        self._prefix, self._view, self._begin, self._end = prefix, view, 0, held

    def _move(self) -> None:
        """What is left in the common buffer goes to its beginning."""
        held = self._end - self._begin
        self._common[:held] = bytes(self._common[self._begin : self._end])
        self._begin, self._end = 0, held
