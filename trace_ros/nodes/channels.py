"""A publisher that may fail: what it throws ends no callback, is counted, told once, and followed by a new attempt."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_RETRY_S = 1.0
"""How long a publisher that failed is left alone before it is made anew."""


class Channel:
    """One publisher with the way to make it, to use it and to give it back."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Any],
        send: Callable[[Any], None],
        discard: Callable[[Any], None],
        tell: Callable[[str], None],
    ) -> None:
        """Make the publisher.

        Args:
            name: for the log and the diagnostics.
            make: returns a publisher.
            send: publishes what there is to publish, with the publisher.
            discard: gives the publisher back to the node.
            tell: takes one line for the log.
        """
        self.name = name
        self._make, self._send, self._discard, self._tell = make, send, discard, tell
        self.failures = 0
        """Messages that could not be sent."""
        self.fault = ""
        """Why the last message was not sent; empty when it was."""
        self._retry_s = 0.0
        self.publisher: Any = make()
        """None while it is broken."""

    @property
    def heard(self) -> bool:
        """Whether somebody listens. Of a publisher that is broken or does not say, only sending can tell what it is."""
        try:
            return self.publisher is None or self.publisher.get_subscription_count() > 0
        except Exception:  # as in `send`, which tells it
            return True

    def send(self) -> bool:
        """Publish; False when that failed."""
        if self.publisher is None and not self._mend():
            self.failures += 1
            return False
        try:
            self._send(self.publisher)
        except Exception as error:  # the middleware's errors have no common base, and none may end the estimator
            self._failed(error)
            self._put_away()
            self.failures += 1
            return False
        if self.fault:
            self.fault = ""
            self._tell(f"{self.name}: publishing again after {self.failures} messages that were not sent")
        return True

    def destroy(self) -> None:
        """Give the publisher back."""
        self._put_away()

    def _mend(self) -> bool:
        if (now := time.monotonic()) < self._retry_s:
            return False
        self._retry_s = now + _RETRY_S
        try:
            self.publisher = self._make()
        except Exception as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        text = " ".join(str(error).split()) or type(error).__name__
        if not self.fault:
            self._tell(f"{self.name}: cannot be published ({text}): trying again every {_RETRY_S:g} s")
        self.fault = text
        self._retry_s = time.monotonic() + _RETRY_S

    def _put_away(self) -> None:
        publisher, self.publisher = self.publisher, None
        if publisher is None:
            return
        try:
            self._discard(publisher)
        except Exception as error:
            self._tell(f"{self.name}: its publisher could not be given back ({' '.join(str(error).split())})")
