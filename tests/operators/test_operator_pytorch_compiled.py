"""Operators inside code that PyTorch traces, compiles and exports: one graph for all sizes, contracts, lifetimes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import deep5 as d5
from backend_operators import DOMAIN, THIRTEEN, Broken, CppPow, PyPow
from deep5.core.errors import OperatorError, ShapeError, Unsupported
from deep5.frameworks.pytorch.compiled import Compiler
from deep5.frameworks.pytorch.framework import PyTorch
from deep5.frameworks.pytorch.operator_pass import PASSES
from deep5.networks import NetworkBuilder
from deep5.operators.cpp import CppOperator
from deep5.operators.registry import register_operator

TORCH, COMPILED = PyTorch(), PyTorch("compiled")
RNG = np.random.default_rng(4)


@register_operator("Weighted", domain=DOMAIN)
class Weighted(CppOperator):
    """(x, w, rows) -> (x[rows] * w, signs): an integer input, a shape that follows from shapes, an integer output."""

    source = """
    template <typename T>
    struct Weighted : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<const T> w, deep5::Tensor<const int64_t> rows,
                   deep5::Tensor<T> y, deep5::Tensor<int32_t> signs) {
        for (int64_t i = 0; i < rows.size(); ++i)
          for (int64_t j = 0; j < x.shape(1); ++j) {
            y(i, j) = x(rows[i], j) * w[j];
            signs(i, j) = (y(i, j) > T(0)) - (y(i, j) < T(0));
          }
        report("rows", static_cast<double>(rows.size()));
      }
      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> w,
                    deep5::Tensor<const int64_t> rows, deep5::Tensor<const T> y, deep5::Tensor<const int32_t> signs,
                    deep5::Tensor<T> dx, deep5::Tensor<T> dw) {
        if (dx) {
          report("dx", 1);
          for (int64_t i = 0; i < dx.size(); ++i) dx[i] = T(0);
          for (int64_t i = 0; i < rows.size(); ++i)
            for (int64_t j = 0; j < x.shape(1); ++j) dx(rows[i], j) += dy(i, j) * w[j];
        }
        if (dw) {
          report("dw", 1);
          for (int64_t j = 0; j < dw.size(); ++j) dw[j] = T(0);
          for (int64_t i = 0; i < rows.size(); ++i)
            for (int64_t j = 0; j < x.shape(1); ++j) dw[j] += dy(i, j) * x(rows[i], j);
        }
      }
    };
    """

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        x, w, rows = inputs
        if len(x.shape) != 2 or w.shape != x.shape[1:]:
            raise ShapeError(f"Weighted: got {x} and {w}; allowed: a matrix and a vector over its columns")
        shape = (rows.shape[0], x.shape[1])
        return (d5.TensorSpec(shape=shape, dtype=x.dtype), d5.TensorSpec(shape=shape, dtype="int32"))


@register_operator("Halves", domain=DOMAIN)
class Halves(d5.Operator):
    """(x, y) -> (first half of x + y's rows, their product): arithmetic on sizes; two outputs."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        x, y = inputs
        if x.shape != y.shape:
            raise ShapeError(f"Halves: got {x} and {y}; allowed: two of one shape")
        rows: Any = x.shape[0]
        return (d5.TensorSpec(shape=(rows // 2, *x.shape[1:]), dtype=x.dtype), x)

    def forward(self, *inputs: Any) -> Any:
        x, y = inputs
        return (x + y)[: x.shape[0] // 2, ...], x * y

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (x, y), (by_half, by_product) = inputs, output_grads
        xp = d5.array_namespace(x)
        rest = xp.zeros((x.shape[0] - x.shape[0] // 2, *x.shape[1:]), dtype=x.dtype)
        both = xp.concat([by_half, rest], axis=0)
        return both + by_product * y if needs[0] else None, both + by_product * x if needs[1] else None


POWERS = [PyPow, CppPow]
both = pytest.mark.parametrize("kind", POWERS, ids=["python", "cpp"])


@pytest.fixture(autouse=True, scope="module")
def _inductor() -> None:
    """Loaded as deep5 loads it: torch warns of its own internals."""
    Compiler()


def normal(*shape: int, dtype: str = "float64") -> Any:
    return torch.from_numpy(RNG.standard_normal(shape)).to(getattr(torch, dtype))


def weighted(rows: int = 4, dtype: str = "float64") -> tuple[Any, Any, Any]:
    return normal(3, 5, dtype=dtype), normal(5, dtype=dtype), torch.arange(rows) % 3


@pytest.mark.parametrize("operator", [Weighted(), Halves()], ids=["cpp", "python"])
def test_gradcheck_of_several_inputs_and_outputs(operator: d5.Operator) -> None:
    inputs = weighted() if isinstance(operator, Weighted) else (normal(4, 2), normal(4, 2))
    for value in inputs:
        value.requires_grad_(value.is_floating_point())
    assert torch.autograd.gradcheck(TORCH.operator(operator), inputs)


@pytest.mark.slow
@both
def test_under_compile_one_graph_serves_batches_of_any_size(kind: type) -> None:
    square, cube = TORCH.operator(kind(2)), TORCH.operator(kind(3))
    count = CompileCounterWithBackend("inductor")

    @torch.compile(fullgraph=True, backend=count)
    def both_powers(x: Any, y: Any) -> Any:
        return square(x) * cube(y) + 1  # two operators of one class, which must not be confused

    for rows in (4, 7, 9, 12):
        x, y = normal(rows, 3).requires_grad_(), normal(rows, 3).requires_grad_()
        made = both_powers(x, y)
        made.sum().backward()
        torch.testing.assert_close(made, x**2 * y**3 + 1)
        torch.testing.assert_close(x.grad, 2 * x * y**3)
        torch.testing.assert_close(y.grad, 3 * y**2 * x**2)
    # As for torch's own functions: one graph for the first size, unless torch remembers that sizes change, and one for
    # all others.
    assert count.frame_count <= 2


def test_under_compile_several_inputs_outputs_and_shapes() -> None:
    rows_of, halves = TORCH.operator(Weighted()), TORCH.operator(Halves())
    count = CompileCounterWithBackend("inductor")

    @torch.compile(fullgraph=True, backend=count)
    def run(x: Any, w: Any, rows: Any) -> Any:
        y, signs = rows_of(x, w, rows)
        half, product = halves(y, y + 1)
        return half, product, signs

    for rows in (4, 6, 8):
        x, w, chosen = weighted(rows)
        half, product, signs = run(x.requires_grad_(), w, chosen)
        y = x.detach()[chosen] * w
        torch.testing.assert_close(half, (2 * y + 1)[: rows // 2])
        torch.testing.assert_close(product, y * (y + 1))
        assert torch.equal(signs, torch.sign(y).int())
        product.sum().backward()
        expected = torch.zeros_like(x).index_add_(0, chosen, (2 * y + 1) * w)
        torch.testing.assert_close(x.grad, expected)
    assert count.frame_count <= 2


def test_a_compiled_executor_computes_the_gradients_that_are_needed() -> None:
    operator, (x, w, rows) = Weighted(), weighted()
    executor, ones = COMPILED.operator_executor(operator), torch.ones(4, 5).double()
    (y, _), gradients = executor.inference_and_backprop((x, w, rows), (ones, None), needs=(False, True, False))
    assert [gradient is None for gradient in gradients] == [True, False, True]
    torch.testing.assert_close(y, x[rows] * w)
    torch.testing.assert_close(gradients[1], x[rows].sum(0))
    assert operator.report() == {"rows": 4.0, "dw": 1.0}


def test_another_operator_under_the_same_name_is_compiled_again() -> None:
    operators = [TORCH.operator(CppPow(power)) for power in (2, 3, 4)]
    current = operators[0]

    @torch.compile(fullgraph=True)
    def run(x: Any) -> Any:
        return current(x)

    x = normal(3)
    for power, current in enumerate(operators, 2):  # noqa: B007 - the closure reads it
        torch.testing.assert_close(run(x), x**power)


@pytest.mark.slow
@both
def test_no_graph_that_torch_has_kept_on_disk_is_taken_for_another(kind: type, tmp_path: Path) -> None:
    program = """
import sys
sys.path[:] = {path!r}
import torch
from backend_operators import {name}
from deep5.frameworks.pytorch.framework import PyTorch
power = int(sys.argv[1])
run = PyTorch().operator({name}(power))
x = torch.arange(4.0).requires_grad_()
y = torch.compile(lambda x: run(x) * 2, fullgraph=True)(x)
y.sum().backward()
assert torch.equal(y, 2 * x**power) and torch.equal(x.grad, 2 * power * x**(power - 1)), (y, x.grad)
"""
    program = program.format(path=sys.path, name=kind.__name__)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    for power in ("2", "3"):
        subprocess.run([sys.executable, "-c", program, power], env=environment, check=True, timeout=120)


@both
def test_make_fx_sees_the_operator_and_not_its_value(kind: type) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    run = TORCH.operator(kind(2))
    graph = make_fx(run)(torch.ones(3))
    assert torch.equal(graph(torch.tensor([1.0, 2.0, 3.0])), torch.tensor([1.0, 4.0, 9.0]))


def test_torch_finds_the_graphs_operator_right() -> None:
    run = TORCH.operator(CppPow(2))
    run(torch.ones(1))
    number = max(PASSES)
    for x in (torch.ones(3), torch.ones(2, 0), torch.ones(3, requires_grad=True)):
        arguments = ([x], None, number, list(x.shape), [x.dim()], [1], False)
        torch.library.opcheck(
            torch.ops.deep5.operator.default, arguments, test_utils=("test_schema", "test_faketensor")
        )


@pytest.mark.slow
@both
def test_an_exported_graph_holds_the_operator_by_number(kind: type) -> None:
    run = TORCH.operator(kind(2))

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return run(x) + 1

    extent = torch.export.Dim("n")
    program = torch.export.export(Module(), (torch.ones(3, 2),), dynamic_shapes=({0: extent},))
    assert torch.equal(program.module()(torch.full((5, 2), 3.0)), torch.full((5, 2), 10.0))


@pytest.mark.daily
def test_an_operator_without_inputs() -> None:
    class Count(CppOperator):
        source = """
        template <typename T>
        struct Count : deep5::Operator {
          void forward(deep5::Tensor<T> y) {
            for (int64_t i = 0; i < y.size(); ++i) y[i] = T(i);
          }
        };
        """

        def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
            return (d5.TensorSpec(shape=(3,)),)

    run = TORCH.operator(Count())
    assert torch.equal(run(), torch.arange(3.0))
    assert torch.equal(torch.compile(lambda x: x + run(), fullgraph=True)(torch.ones(3)), torch.arange(3.0) + 1)


def test_what_torch_cannot_trace_is_refused_with_the_reason() -> None:
    class Peeks(PyPow):
        def forward(self, *inputs: Any) -> Any:
            return inputs[0] if float(inputs[0].sum()) > 0 else -inputs[0]

    run = torch.compile(TORCH.operator(Peeks()), fullgraph=True)
    with pytest.raises(RuntimeError, match=r"Peeks\.forward cannot be traced by torch .*must not depend on the values"):
        run(torch.ones(3))
    with pytest.raises(Unsupported, match=r"Peeks\.forward cannot be traced"):
        COMPILED.operator_executor(Peeks()).inference(torch.ones(3))


WRONG: dict[str, tuple[Callable[..., Any], str, Callable[..., Any], str]] = {
    "count": (
        *(lambda x: (x, x), r"Broken\.forward returned 2 outputs; allowed: 1"),
        *(lambda x: (x, x), r"Broken\.backward returned 2 gradients; allowed: one per input, 1"),
    ),
    "shape": (
        *(lambda x: x[1:], r"Broken\.forward: output 0: got shape \(2, 2\), expected float32\[3, 2\]"),
        *(lambda x: (x[1:],), r"gradient by input 0: got float32\[2, 2\], expected float32\[3, 2\]"),
    ),
    "dtype": (
        *(lambda x: x.double(), r"Broken\.forward: output 0: got dtype float64, expected float32"),
        *(lambda x: (x.double(),), r"gradient by input 0: got float64\[3, 2\]"),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_contract_holds_while_torch_traces(case: str) -> None:
    forward, message, backward, backward_message = WRONG[case]
    run, x = torch.compile(TORCH.operator(Broken(forward)), fullgraph=True, dynamic=True), torch.ones(3, 2)
    with pytest.raises(RuntimeError, match=r"OperatorError.*Broken\.forward"):
        run(x)
    with pytest.raises(OperatorError, match=message):
        COMPILED.operator_executor(Broken(forward)).inference(x)
    with pytest.raises(OperatorError, match=backward_message):
        COMPILED.operator_executor(Broken(None, backward)).inference_and_backprop((x,), (x,))


def test_what_an_operator_in_cpp_throws_leaves_compiled_code() -> None:
    with pytest.raises(OperatorError, match=THIRTEEN):
        torch.compile(TORCH.operator(CppPow()), fullgraph=True)(torch.ones(13))


def collected(reference: Callable[[], Any]) -> bool:
    """Whether it is gone; tensor memory is not part of Python's cycles, so that it takes more than one collection."""
    for _ in range(3):
        gc.collect()
    return reference() is None


@pytest.mark.slow
@both
def test_an_operator_that_nobody_holds_is_gone(kind: type) -> None:
    before = len(PASSES)
    operator = kind()
    run, gone = TORCH.operator(operator), weakref.ref(operator)
    run(torch.ones(2, requires_grad=True)).sum().backward()
    torch.compile(run, fullgraph=True)(torch.ones(2, requires_grad=True)).sum().backward()
    del operator, run
    torch._dynamo.reset()
    assert collected(gone)
    assert len(PASSES) <= before


@both
@pytest.mark.parametrize("compiled", [pytest.param(False, marks=pytest.mark.daily), True])
def test_what_is_still_to_run_backward_holds_the_operator(kind: type, compiled: bool) -> None:
    def made(x: Any) -> tuple[Any, Any]:
        operator = kind(3)
        run = TORCH.operator(operator)
        return (torch.compile(run, fullgraph=True) if compiled else run)(x), weakref.ref(operator)

    x = normal(3).requires_grad_()
    y, gone = made(x)
    torch._dynamo.reset()
    gc.collect()
    y.sum().backward()
    torch.testing.assert_close(x.grad, 3 * x**2)
    del y
    assert collected(gone)


def test_a_graph_without_its_operator_says_so() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(TORCH.operator(CppPow(2)))(torch.ones(3))
    for _ in range(3):
        gc.collect()
    with pytest.raises(OperatorError, match=r"the operator of this graph was freed; remedy: keep the result"):
        graph(torch.ones(3))


@pytest.mark.parametrize(
    "framework", [TORCH, pytest.param(COMPILED, marks=pytest.mark.slow)], ids=["eager", "compiled"]
)
def test_a_network_with_several_outputs_of_a_node(framework: PyTorch) -> None:
    build = NetworkBuilder("several", dtype="float64")
    x, rows = build.input("x", (3, 5)), build.input("rows", ("N",), "int64")
    w = build.parameter("w", (5,), lambda rng, shape: np.arange(1.0, 6.0))
    y, signs = build.op("Weighted", x, w, rows, domain=DOMAIN, outputs=2)
    half = build.op("Halves", y, y, domain=DOMAIN, outputs=1)  # only the first of its outputs is requested
    loss = build.op("ReduceMean", half, keepdims=0)
    executor = framework.executor(build.network({"signs": signs, "half": half, "loss": loss}))
    feed = {"x": RNG.standard_normal((3, 5)), "rows": np.array([2, 0, 1, 1])}
    outputs = executor.inference_and_backprop(feed)
    expected = feed["x"][feed["rows"]] * np.arange(1.0, 6.0)
    np.testing.assert_array_equal(outputs["signs"], np.sign(expected))
    np.testing.assert_allclose(outputs["half"], 2 * expected[:2], rtol=1e-14)
    np.testing.assert_allclose(executor.gradients()["w"], 2 * feed["x"][[2, 0]].sum(0) / 10, rtol=1e-13)
