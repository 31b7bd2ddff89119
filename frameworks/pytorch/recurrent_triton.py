"""A recurrent layer in Triton: all steps in one kernel, forward and backward.

Triton compiles it for a GPU. With `TRITON_INTERPRET=1`, set before this module is imported, it runs on the host by
NumPy, slowly: good for checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from deep5.core.errors import MissingDependency
from deep5.operators.native import NativeOperator
from deep5.operators.zoo import RecurrentPersistent

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

__all__ = ["recurrent_triton"]

_TILES = {"ROWS": 16, "UNITS": 32, "DEPTH": 32}
"""Samples of a program, units at a time, and terms of a product at a time; 16 is the least of a product in Triton."""
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _kernel(function: Any) -> Any:
    """What Triton makes of a function; without Triton, the function, which nothing calls."""
    return function if triton is None else triton.jit(function)


def recurrent_triton(cell: str = "LSTM", activation: str = "Tanh") -> NativeOperator:
    """ONNX's RNN, GRU or LSTM in one direction from zero states, as one Triton kernel for all steps.

    Inputs, output, arguments and errors are those of `deep5.operators.zoo.RecurrentPersistent`, as tensors of PyTorch;
    gradients are a second kernel. A program computes 16 samples in all steps, so that nothing is launched between
    steps, and the weights of the state, which every step reads, stay in the GPU's caches. The products with the input
    and the gradients by weights are PyTorch's, before and after. Products of float32 are not rounded to TF32.

    Returns:
        An operator of the framework `pytorch`.

    Raises:
        MissingDependency: Triton is not installed.
        UsageError: Another cell, or an activation that the cell does not have.
    """
    if triton is None:
        raise MissingDependency(
            "recurrent layers in Triton need triton, which comes with PyTorch's builds for GPUs; remedy: pip install "
            "triton"
        )
    specs = RecurrentPersistent(cell, activation).specs

    def recurrent(x: Any, w: Any, r: Any, b: Any) -> Any:
        return _Layer.apply(x, w, r, b, cell, activation)

    return NativeOperator(recurrent, framework="pytorch", specs=specs)


class _Layer(torch.autograd.Function):  # type: ignore[misc]
    """The kernels and the products around them."""

    @staticmethod
    def forward(context: Any, x: Any, w: Any, r: Any, b: Any, cell: str, activation: str) -> Any:
        (steps, batch, _), hidden, count = x.shape, r.shape[2], _GATES[cell]
        x, w, r = x.contiguous(), w[0].contiguous(), r[0].contiguous()
        of_input, of_state = b[0].chunk(2)
        # The reset gate of a GRU multiplies the bias of its last gate, too; other biases are added to the input's.
        outside = 2 * hidden if cell == "GRU" else count * hidden
        bias = torch.cat([of_input[:outside] + of_state[:outside], of_input[outside:]])
        gates = torch.matmul(x.view(steps * batch, -1), w.T) + bias
        out, cells = (x.new_empty(steps, batch, hidden) for _ in range(2))
        last = of_state[outside:].contiguous() if cell == "GRU" else bias
        if out.numel():
            _forward[_grid(batch)](
                gates, cells, r, last, out, steps, batch, hidden, COUNT=count, RELU=activation == "Relu", **_TILES
            )
        context.save_for_backward(x, w, r, gates, cells, out)
        context.options = count, activation == "Relu"
        return out.view(steps, 1, batch, hidden)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(context: Any, dy: Any) -> Any:
        x, w, r, gates, cells, out = context.saved_tensors
        (count, relu), (steps, batch, hidden) = context.options, out.shape
        gates, cells = gates.clone(), cells.clone()  # a second call differentiates again
        carried, carried_cell = (x.new_zeros(batch, hidden) for _ in range(2))
        if out.numel():
            _backward[_grid(batch)](
                gates, cells, r, out, dy.contiguous(), carried, carried_cell, steps, batch, hidden,
                COUNT=count, RELU=relu, **_TILES,
            )  # fmt: skip
        before = torch.cat([out.new_zeros(1, batch, hidden), out[:-1]]).view(-1, hidden)
        of_state = gates
        if count == 3:
            of_state = torch.cat([gates[:, : 2 * hidden], cells.view(-1, hidden)], 1)
        biases = torch.cat([gates.sum(0), of_state.sum(0)])
        return (
            torch.matmul(gates, w).view(x.shape),
            torch.matmul(gates.T, x.view(len(gates), -1))[None],
            torch.matmul(of_state.T, before)[None],
            biases[None],
            None,
            None,
        )


def _grid(batch: int) -> Sequence[int]:
    return (triton.cdiv(batch, _TILES["ROWS"]),)


@_kernel
def _tanh(x):  # type: ignore[no-untyped-def]
    return 2 * tl.sigmoid(2 * x) - 1


@_kernel
def _added(sums, left, right):  # type: ignore[no-untyped-def]
    """The sums plus a product, not rounded to TF32."""
    return sums + tl.dot(left, right, input_precision="ieee", out_dtype=sums.dtype)


@_kernel
def _forward(  # type: ignore[no-untyped-def]
    gates, cells, r, bias, out, steps, batch, hidden,
    COUNT: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, DEPTH: tl.constexpr,  # noqa: N803 - Triton's custom
):  # fmt: skip
    """States of all steps. `gates` (steps · batch, COUNT · hidden) holds the sums over the input, then the gates.

    `cells` receives the cell states of an LSTM, or the last gate's sums over the state of a GRU.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = (rows < batch)[:, None]
    for step in range(steps):
        line = (step * batch + rows)[:, None]
        for first in range(0, hidden, UNITS):
            units = first + tl.arange(0, UNITS)
            inside = here & (units < hidden)[None, :]
            later = inside & (line >= batch)
            own = gates + line * (COUNT * hidden) + units[None, :]
            at = line * hidden + units[None, :]
            a = tl.load(own, mask=inside, other=0.0)
            if COUNT > 1:
                b = tl.load(own + hidden, mask=inside, other=0.0)
                c = tl.load(own + 2 * hidden, mask=inside, other=0.0)
            if COUNT == 3:
                p = tl.zeros_like(a) + tl.load(bias + units, mask=units < hidden, other=0.0)[None, :]
            if COUNT == 4:
                d = tl.load(own + 3 * hidden, mask=inside, other=0.0)
            for depth in range(0, hidden, DEPTH):
                terms = depth + tl.arange(0, DEPTH)
                h = tl.load(
                    out + (line - batch) * hidden + terms[None, :],
                    mask=here & (terms < hidden)[None, :] & (line >= batch), other=0.0,
                )  # fmt: skip
                there = (terms < hidden)[:, None] & (units < hidden)[None, :]
                weights = r + units[None, :] * hidden + terms[:, None]
                a = _added(a, h, tl.load(weights, mask=there, other=0.0))
                if COUNT > 1:
                    b = _added(b, h, tl.load(weights + hidden * hidden, mask=there, other=0.0))
                if COUNT == 3:
                    p = _added(p, h, tl.load(weights + 2 * hidden * hidden, mask=there, other=0.0))
                if COUNT == 4:
                    c = _added(c, h, tl.load(weights + 2 * hidden * hidden, mask=there, other=0.0))
                    d = _added(d, h, tl.load(weights + 3 * hidden * hidden, mask=there, other=0.0))
            if COUNT == 1:
                state = tl.maximum(a, 0.0) if RELU else _tanh(a)
            elif COUNT == 3:
                a, b = tl.sigmoid(a), tl.sigmoid(b)
                c = _tanh(c + b * p)
                state = c + a * (tl.load(out + at - batch * hidden, mask=later, other=0.0) - c)
                tl.store(cells + at, p, mask=inside)
            else:
                a, b, c, d = tl.sigmoid(a), tl.sigmoid(b), tl.sigmoid(c), _tanh(d)
                held = c * tl.load(cells + at - batch * hidden, mask=later, other=0.0) + a * d
                state = b * _tanh(held)
                tl.store(cells + at, held, mask=inside)
                tl.store(own + 3 * hidden, d, mask=inside)
            if COUNT > 1:
                tl.store(own, a, mask=inside)
                tl.store(own + hidden, b, mask=inside)
                tl.store(own + 2 * hidden, c, mask=inside)
            tl.store(out + at, state, mask=inside)
        tl.debug_barrier()  # the next step reads the states that all threads of the program have written


@_kernel
def _backward(  # type: ignore[no-untyped-def]
    gates, cells, r, out, dy, carried, carried_cell, steps, batch, hidden,
    COUNT: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, DEPTH: tl.constexpr,  # noqa: N803 - Triton's custom
):  # fmt: skip
    """Gradients by the gates' sums, in the place of `gates`; of a GRU's last one, by those over the state in `cells`.

    `carried` and `carried_cell` (batch, hidden) pass the gradients by a state from step to step, and begin with 0.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = (rows < batch)[:, None]
    for back in range(steps):
        step = steps - 1 - back
        line = (step * batch + rows)[:, None]
        for first in range(0, hidden, UNITS):
            units = first + tl.arange(0, UNITS)
            inside = here & (units < hidden)[None, :]
            later = inside & (line >= batch)
            own = gates + line * (COUNT * hidden) + units[None, :]
            at, held = line * hidden + units[None, :], rows[:, None] * hidden + units[None, :]
            dh = tl.load(dy + at, mask=inside, other=0.0) + tl.load(carried + held, mask=inside, other=0.0)
            if COUNT == 1:
                h = tl.load(out + at, mask=inside, other=0.0)
                tl.store(own, tl.where(h > 0, dh, 0.0) if RELU else dh * (1 - h * h), mask=inside)
            else:
                a = tl.load(own, mask=inside, other=0.0)
                b = tl.load(own + hidden, mask=inside, other=0.0)
                c = tl.load(own + 2 * hidden, mask=inside, other=0.0)
                cell = tl.load(cells + at, mask=inside, other=0.0)
            if COUNT == 3:
                before = tl.load(out + at - batch * hidden, mask=later, other=0.0)
                dc = dh * (1 - a) * (1 - c * c)
                tl.store(own, dh * (before - c) * a * (1 - a), mask=inside)
                tl.store(own + hidden, dc * cell * b * (1 - b), mask=inside)
                tl.store(own + 2 * hidden, dc, mask=inside)
                tl.store(cells + at, dc * b, mask=inside)
                tl.store(carried + held, dh * a, mask=inside)
            if COUNT == 4:
                d = tl.load(own + 3 * hidden, mask=inside, other=0.0)
                before = tl.load(cells + at - batch * hidden, mask=later, other=0.0)
                turned = _tanh(cell)
                dcell = dh * b * (1 - turned * turned) + tl.load(carried_cell + held, mask=inside, other=0.0)
                tl.store(own, dcell * d * a * (1 - a), mask=inside)
                tl.store(own + hidden, dh * turned * b * (1 - b), mask=inside)
                tl.store(own + 2 * hidden, dcell * before * c * (1 - c), mask=inside)
                tl.store(own + 3 * hidden, dcell * a * (1 - d * d), mask=inside)
                tl.store(carried_cell + held, dcell * c, mask=inside)
        tl.debug_barrier()
        for first in range(0, hidden, UNITS):
            units = first + tl.arange(0, UNITS)
            inside = here & (units < hidden)[None, :]
            held = rows[:, None] * hidden + units[None, :]
            # A GRU's state has a direct part, too.
            sums = tl.load(carried + held, mask=inside, other=0.0)
            if COUNT != 3:
                sums = tl.zeros_like(sums)
            for gate in tl.static_range(COUNT):
                for depth in range(0, hidden, DEPTH):
                    terms = depth + tl.arange(0, DEPTH)
                    there = here & (terms < hidden)[None, :]
                    if COUNT == 3 and gate == 2:
                        change = tl.load(cells + line * hidden + terms[None, :], mask=there, other=0.0)
                    else:
                        change = tl.load(
                            gates + line * (COUNT * hidden) + gate * hidden + terms[None, :], mask=there, other=0.0
                        )
                    weights = r + (gate * hidden + terms)[:, None] * hidden + units[None, :]
                    within = (terms < hidden)[:, None] & (units < hidden)[None, :]
                    sums = _added(sums, change, tl.load(weights, mask=within, other=0.0))
            tl.store(carried + held, sums, mask=inside)
        tl.debug_barrier()
