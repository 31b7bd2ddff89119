"""What calls gave that is not there yet: JAX returns before the work is done."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Pending"]


class Pending(threading.local):
    """What the last call of each thread gave: who waits, waits for calls of its own, and is told what they failed on.

    Attributes:
        results: Of this thread's last call, arrays in tuples.
    """

    results: Any = ()

    def take(self) -> Any:
        """The results, which are forgotten."""
        results, self.results = self.results, ()
        return results
