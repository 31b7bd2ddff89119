"""Results of calls that may not be finished: JAX returns before the work is done."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Pending"]


class Pending(threading.local):
    """The results of each thread's last call: a thread waits for its own calls, and receives their errors.

    Attributes:
        results: Results of this thread's last call, arrays in tuples.
    """

    results: Any = ()

    def take(self) -> Any:
        """Returns and clears the results."""
        results, self.results = self.results, ()
        return results
