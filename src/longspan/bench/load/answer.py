"""What came back for one request of a load, and when."""

from __future__ import annotations

from typing import Any

import msgspec


class LoadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Times are seconds after the load began.

    due: when it should have been sent; sent: when it was. chunks: when each chunk that carried text arrived.
    prompt_tokens, output_tokens: as the server counted them. error: why it failed, "" when it did not.
    metrics: what the server itself said of the answer, if it did.
    """

    due: float
    sent: float
    chunks: tuple[float, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    finish_reason: str = ""
    error: str = ""
    category: str = ""
    metrics: dict[str, Any] = {}

    @property
    def time_to_first(self) -> float:
        """Seconds from sending to the first chunk; 0 when there is none."""
        return self.chunks[0] - self.sent if self.chunks else 0.0

    @property
    def latency(self) -> float:
        """Seconds from sending to the last chunk; 0 when there is none."""
        return self.chunks[-1] - self.sent if self.chunks else 0.0

    @property
    def gaps(self) -> list[float]:
        """Seconds between neighbouring chunks."""
        return [later - earlier for earlier, later in zip(self.chunks, self.chunks[1:], strict=False)]

    @property
    def time_per_token(self) -> float:
        """Seconds a token after the first: (latency - time to first) / (tokens - 1); 0 for one token.

        With speculation a chunk holds several tokens, so this is less than the mean gap between chunks.
        """
        if self.output_tokens < 2:
            return 0.0
        return (self.latency - self.time_to_first) / (self.output_tokens - 1)
