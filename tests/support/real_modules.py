"""PyTorch modules to export besides those of `exported_modules`: bags, branches, loops, half precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from exported_modules import MODULES, Case

__all__ = ["DYNAMO", "SCRIPT"]


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(11, 6, mode="mean"), nn.Linear(6, 3)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.words(tokens))


class Offsets(nn.Module):
    """Bags of different lengths in one row of indices."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(11, 6, mode="sum"), nn.Linear(6, 3)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.words(tokens, torch.tensor([0, 2, 5])))


class Branch(nn.Module):
    """A branch that depends on a value: TorchScript writes If."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # The compiler of TorchScript reads this; a conditional expression would be another node.
        if float(x.sum()) > 0:  # noqa: SIM108
            y = torch.tanh(self.one(x))
        else:
            y = self.other(x)
        return y


class Loop(nn.Module):
    """A loop over the first axis, whose length only the input decides: TorchScript writes Loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.Linear(7, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(x.size(1), 3)
        for place in range(x.size(0)):
            state = torch.tanh(self.cell(torch.cat([x[place], state], 1)))
        return self.head(state)


class Cond(nn.Module):
    """`torch.cond`, which the exporter writes as If."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: torch.tanh(self.one(x)), self.other, (x,))


class Scan(nn.Module):
    """The higher-order `scan`, which the exporter writes as Scan."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(7, 3) / 3), nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        from torch._higher_order_ops.scan import scan

        def step(state: Any, row: Any) -> Any:
            state = torch.tanh(torch.cat([row, state], 1) @ self.weight)
            return state, state.clone()

        _, states = scan(step, torch.zeros(3, 3), x)
        return self.head(states)


_SHARED = (
    "convolutions",
    "transposed",
    "lstm",
    "gru",
    "encoder",
    "attention",
    "embedding",
    "interpolation",
    "functions",
)
_BOTH = {
    **{name: MODULES[name] for name in _SHARED},
    "bag": Case(Bag, (((3, 4), 11),)),
    "offsets": Case(Offsets, (((8,), 11),)),
    "half": Case(MODULES["convolutions"].make, MODULES["convolutions"].inputs),
    "half lstm": Case(MODULES["lstm"].make, MODULES["lstm"].inputs),
    "half perceptron": Case(MODULES["perceptron"].make, MODULES["perceptron"].inputs),
}
DYNAMO = {
    **_BOTH,
    "bfloat16 perceptron": Case(MODULES["perceptron"].make, MODULES["perceptron"].inputs),
    "cond": Case(Cond, ((2, 4),)),
    "scan": Case(Scan, ((5, 3, 4),)),
}
"""The modules for `torch.onnx.export(dynamo=True)`; `half` and `bfloat16` in a name convert the module."""
SCRIPT = {
    **_BOTH,
    "branch": Case(lambda: torch.jit.script(Branch()), ((2, 4),)),
    "loop": Case(lambda: torch.jit.script(Loop()), ((5, 3, 4),)),
}
"""The modules for `torch.onnx.export(dynamo=False)`."""
