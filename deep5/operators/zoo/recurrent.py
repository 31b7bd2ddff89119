"""A recurrent layer in one call, with the weights of the state copied once for all steps."""

from __future__ import annotations

from typing import Any

from deep5.core.errors import ShapeError, UsageError, brief
from deep5.core.tensors import TensorSpec
from deep5.operators import work
from deep5.operators.cpp import CppOperator
from deep5.operators.registry import register_operator

__all__ = ["RecurrentPersistent"]

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_ACTIVATIONS = ("Tanh", "Relu")


@register_operator("RecurrentPersistent", domain="deep5")
class RecurrentPersistent(CppOperator):
    """ONNX's RNN, GRU or LSTM in one direction from zero states: all steps in one call, on the host.

    Inputs, with G gates in ONNX's order:
        x: [T, N, I], the sequence.
        w: [1, G H, I], the weights of the input.
        r: [1, G H, H], the weights of the state.
        b: [1, 2 G H], the biases of the sums over the input, then over the state.

    The output is [T, 1, N, H], the states of all steps. The products with the input are computed before the first step.
    The weights of the state are copied into panels once, and each thread multiplies by its own ones in all steps, so
    that they stay in the caches of its core; threads meet once a step. The result of a sample does not depend on the
    other samples of its batch, nor on their number. `backward` computes the gates again, in one product for all steps,
    and copies the weights of the state once for the way back.

    Exponentials and tangents are series with an error of a few units in the last place. `report` counts
    `"multiplications"` of the forward pass and the largest `"workspace bytes"` of a call.

    Args:
        cell: "RNN", "GRU" (with the reset gate after the product: ONNX's `linear_before_reset=1`) or "LSTM".
        activation: Of an RNN: "Tanh" or "Relu". GRU and LSTM have "Tanh".

    Raises:
        UsageError: Another cell, or an activation that the cell does not have.

    References:
        Diamos, Sengupta, Catanzaro, Chrzanowski, Coates, Elsen, Engel, Hannun and Satheesh, Persistent RNNs: stashing
        recurrent weights on-chip, ICML 2016, section 4.

    >>> import numpy as np
    >>> layer = RecurrentPersistent("RNN", "Relu")
    >>> x, one = np.array([[[1.0]], [[2.0]], [[4.0]]]), np.ones((1, 1, 1))
    >>> layer.forward(x, one, one / 2, np.zeros((1, 2))).ravel()  # h = x + h / 2
    array([1.  , 2.5 , 5.25])
    """

    source = "recurrent_persistent.cpp"

    def __init__(self, cell: str = "LSTM", activation: str = "Tanh") -> None:
        if cell not in _GATES:
            raise UsageError(f"RecurrentPersistent: got cell={brief(cell)}; allowed: {', '.join(_GATES)}")
        allowed = _ACTIVATIONS if cell == "RNN" else _ACTIVATIONS[:1]
        if activation not in allowed:
            raise UsageError(
                f"RecurrentPersistent: got activation={brief(activation)} for the cell {cell}; allowed: "
                f"{' or '.join(allowed)}"
            )
        super().__init__(cell=cell, activation=activation)

    def specs(  # type: ignore[override]
        self, x: TensorSpec, w: TensorSpec, r: TensorSpec, b: TensorSpec
    ) -> tuple[TensorSpec, ...]:
        """The states of all steps.

        Raises:
            ShapeError: The inputs are not those of the cell, or of different element types.
        """
        cell, gates = self.attributes["cell"], _GATES[self.attributes["cell"]]
        given = (x, w, r, b)
        ranks = [len(spec.shape) for spec in given]
        hidden = r.shape[2] if ranks == [3, 3, 3, 2] else 0
        if ranks == [3, 3, 3, 2]:
            rows: Any = gates * hidden
            wanted = {w: (1, rows, x.shape[2]), r: (1, rows, hidden), b: (1, 2 * rows)}
            fits = all(_agree(spec.shape, shape) for spec, shape in wanted.items())
        if ranks != [3, 3, 3, 2] or not fits or len({spec.dtype for spec in given}) > 1:
            raise ShapeError(
                f"RecurrentPersistent: got {', '.join(map(str, given))}; allowed: of one element type, for {cell} a "
                f"sequence [T, N, I], weights [1, {gates} H, I] and [1, {gates} H, H], and biases [1, {2 * gates} H]"
            )
        return (TensorSpec(shape=(x.shape[0], 1, x.shape[1], hidden), dtype=x.dtype),)

    def flops(self, x: TensorSpec, w: TensorSpec, r: TensorSpec, b: TensorSpec) -> int:
        """Multiplications and additions of the products: those of ONNX's layer."""
        return int(work.flops(self.attributes["cell"], (x, w, r), self.specs(x, w, r, b), {}) or 0)


def _agree(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    """Whether the known dimensions are equal."""
    pairs = zip(found, wanted, strict=True)
    return all(one == other for one, other in pairs if isinstance(one, int) and isinstance(other, int))
