"""`GradientStamps`: the time between steps of a program, and between nodes of torch's backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from deep5.networks.network import Network
from deep5.networks.stamps import Stamps

__all__ = ["GradientStamps"]


class GradientStamps(Stamps):
    """Stamps that also measure the time between nodes of torch's backward pass.

    The nodes that a step adds to torch's graph belong to its layer. A hook stamps the start of each; the engine's work
    until the next one starts counts toward it, too: sums of values with several uses, and writing a parameter's
    gradient.

    Args:
        network: The network whose layers are timed.
        place: Where it runs.
    """

    def __init__(self, network: Network, place: torch.device) -> None:
        super().__init__(network, (lambda: torch.cuda.synchronize(place)) if place.type == "cuda" else None)
        self._roots: list[tuple[int, Any]] = []
        self._running: int | None = None

    def _look(self, number: int, values: tuple[Any, ...]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                self._roots.append((number, value.grad_fn))

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Inside the context, the backward pass of the program that ran last is timed."""
        groups, seen = list(self._numbers), set[Any]()
        for number, root in self._roots:
            own = self.number(groups[number]._replace(backward=True))
            waiting = [root]
            while waiting:
                node = waiting.pop()
                # A leaf's node outlives the pass, and a hook would stay with it; torch runs it after its source.
                if node in seen or type(node).__name__ == "AccumulateGrad":
                    continue
                seen.add(node)
                node.register_prehook(lambda _, own=own: self._next(own))
                waiting += [source for source, _ in node.next_functions if source is not None]
        self._roots.clear()
        try:
            yield
        finally:
            self._next(None)

    def _next(self, number: int | None) -> None:
        if self._running is not None:
            self.mark(self._running)
        else:
            self.begin()
        self._running = number
