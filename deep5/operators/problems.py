"""Problem sets by name: those of DeepBench, and those of deep5's operator studies.

DeepBench (Baidu Research, https://github.com/baidu-research/DeepBench, Apache-2.0): the sizes in
`code/kernels/*_problems.h`, one row per problem, in the tables next to this module. Its sparse matrix products and
all-reduce sizes exist only as tables, as they are not problems of a single ONNX operator.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from math import sqrt
from typing import Any

from deep5.core.errors import UnknownName, UsageError
from deep5.core.tensors import TensorSpec
from deep5.operators.problem import Direction, Problem
from deep5.operators.zoo import problems as studies

__all__ = ["PROBLEM_SETS", "TABLES", "problem_rows", "problem_set"]

TABLES = ("all_reduce", "conv", "gemm", "rnn", "sparse_gemm")
"""DeepBench's tables."""


def problem_rows(table: str) -> list[dict[str, Any]]:
    """The rows of one of DeepBench's tables in order, with numbers and flags parsed.

    Args:
        table: One of `TABLES`.

    Raises:
        UnknownName: No such table.

    >>> problem_rows("all_reduce")[0]
    {'elements': 100000, 'repeats': 10000}
    """
    if table not in TABLES:
        raise UnknownName("table of DeepBench", table, TABLES)
    text = files("deep5.operators").joinpath("deepbench", f"{table}.csv").read_text("utf-8")
    return [{key: _read(value) for key, value in row.items()} for row in csv.DictReader(io.StringIO(text))]


def problem_set(name: str, uses: Sequence[str] = (), dtype: str = "float32") -> tuple[Problem, ...]:
    """The problems of a set.

    Args:
        name: A key of `PROBLEM_SETS`: "deepbench.conv", "deepbench.gemm", "deepbench.rnn".
        uses: A subset of "training", "inference_server", "inference_device"; all if empty.
        dtype: Element type of every tensor.

    Raises:
        UsageError: No such set, or no such use.

    >>> problem_set("deepbench.conv")[23].title
    'N=16 C=3 H=224 W=224 K=64 3x3'
    """
    if name not in PROBLEM_SETS:
        table = name.removeprefix("deepbench.")
        if name.startswith("deepbench.") and table in TABLES:
            raise UsageError(
                f"the problems {name!r} are only a table (deep5.operators.problems.problem_rows({table!r})): no ONNX "
                f"operator runs them; allowed: {', '.join(PROBLEM_SETS)}"
            )
        raise UnknownName("problem set", name, PROBLEM_SETS)
    made = PROBLEM_SETS[name](dtype)
    known = sorted({problem.use for problem in made})
    for use in uses:
        if use not in known:
            raise UnknownName("use of a problem", str(use), known)
    return tuple(problem for problem in made if not uses or problem.use in uses)


def _convolutions(dtype: str) -> list[Problem]:
    problems = []
    for number, row in enumerate(problem_rows("conv"), start=1):
        x = (row["batch"], row["in_channels"], row["height"], row["width"])
        w = (row["out_channels"], row["in_channels"], row["kernel_height"], row["kernel_width"])
        pads, strides = (row["pad_height"], row["pad_width"]), (row["stride_height"], row["stride_width"])
        y = [
            (size + 2 * pad - window) // step + 1
            for size, pad, window, step in zip(x[2:], pads, w[2:], strides, strict=True)
        ]
        title = f"N={x[0]} C={x[1]} H={x[2]} W={x[3]} K={w[0]} {w[2]}x{w[3]}"
        title += f" stride {strides[0]}x{strides[1]}" if strides != (1, 1) else ""
        directions: tuple[Direction, ...] = (Direction(),)
        if row["use"] == "training":
            by_data = Direction(name="backward by data", needs=(True, False))
            directions += (by_data, Direction(name="backward by weights", needs=(False, True)))
        problems.append(
            Problem(
                name=f"conv-{number}",
                title=title,
                operator="Conv",
                inputs=(TensorSpec(shape=x, dtype=dtype), TensorSpec(shape=w, dtype=dtype)),
                outputs=(TensorSpec(shape=(x[0], w[0], *y), dtype=dtype),),
                attributes={"pads": [*pads, *pads], "strides": list(strides)},
                directions=directions,
                use=row["use"],
                sizes=row,
            )
        )
    return problems


def _products(dtype: str) -> list[Problem]:
    problems = []
    for number, row in enumerate(problem_rows("gemm"), start=1):
        m, n, k = row["m"], row["n"], row["k"]
        over_a, over_b = row["transpose_a"], row["transpose_b"]
        marks = [f"{letter} transposed" for letter, over in (("A", over_a), ("B", over_b)) if over]
        problems.append(
            Problem(
                name=f"gemm-{number}",
                title=", ".join([f"M={m} N={n} K={k}", *marks]),
                operator="Gemm",
                inputs=(
                    TensorSpec(shape=(k, m) if over_a else (m, k), dtype=dtype),
                    TensorSpec(shape=(n, k) if over_b else (k, n), dtype=dtype),
                ),
                outputs=(TensorSpec(shape=(m, n), dtype=dtype),),
                attributes={"transA": int(over_a), "transB": int(over_b)},
                # The products of a backward pass are separate rows of the table: the transposed ones.
                use=row["use"],
                sizes=row,
            )
        )
    return problems


# ONNX's operator, its gates, and the attributes of DeepBench's cell: ReLU in the vanilla RNN, and the GRU with the
# reset gate after the product, as in the frameworks' own layers.
_CELLS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "vanilla": ("RNN", 1, {"activations": ["Relu"]}),
    "lstm": ("LSTM", 4, {}),
    "gru": ("GRU", 3, {"linear_before_reset": 1}),
}


def _recurrent(dtype: str) -> list[Problem]:
    problems = []
    for number, row in enumerate(problem_rows("rnn"), start=1):
        hidden, batch, steps = row["hidden"], row["batch"], row["timesteps"]
        operator, gates, attributes = _CELLS[row["cell"]]
        shapes = ((steps, batch, hidden), (1, gates * hidden, hidden), (1, gates * hidden, hidden))
        directions: tuple[Direction, ...] = (Direction(),)
        if row["use"] == "training":
            directions += (Direction(name="backward", needs=(True, True, True)),)
        # Uniform numbers of this magnitude give a contracting matrix, so that the state stays finite over 1500 steps.
        scale = 1 / sqrt(hidden)
        problems.append(
            Problem(
                name=f"rnn-{number}",
                title=f"{row['cell']} H={hidden} N={batch} T={steps}",
                operator=operator,
                inputs=tuple(TensorSpec(shape=shape, dtype=dtype) for shape in shapes),
                outputs=(TensorSpec(shape=(steps, 1, batch, hidden), dtype=dtype),),
                attributes={"hidden_size": hidden, **attributes},
                directions=directions,
                use=row["use"],
                scales=(1.0, scale, scale),
                sizes=row,
            )
        )
    return problems


PROBLEM_SETS: Mapping[str, Callable[[str], list[Problem]]] = {
    "deepbench.conv": _convolutions,
    "deepbench.gemm": _products,
    "deepbench.rnn": _recurrent,
    "studies.convolution": studies.convolutions,
    "studies.layers": studies.layers,
    "studies.matmul": studies.products,
    "studies.recurrent": studies.recurrent_layers,
}
"""Set name to the function that creates its problems for an element type."""


def _read(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text
