"""Operators on PyTorch: in Python, in C++, native ones and ONNX's, eager and compiled, alone and in networks."""

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
import onnx_ir as ir
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

import deep5 as d5
from deep5.core.errors import Deep5Error, OperatorError, ShapeError, Unsupported, UsageError
from deep5.frameworks.pytorch.compiled import Compiler
from deep5.frameworks.pytorch.executor import PyTorchExecutor
from deep5.frameworks.pytorch.framework import PyTorch
from deep5.frameworks.pytorch.operator_pass import PASSES
from deep5.networks import Network, NetworkBuilder
from deep5.networks.gradients import gradient_network
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator
from deep5.operators.registry import register_operator
from memory_cases import Where, addresses

TORCH, COMPILED = PyTorch(), PyTorch("compiled")
RNG = np.random.default_rng(4)
DOMAIN = "test.pytorch"


@register_operator("PyPow", domain=DOMAIN)
class PyPow(d5.Operator):
    """x to a whole power, in Python."""

    def __init__(self, power: int = 3) -> None:
        self.power = power

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        (x,) = inputs
        return (x,)

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] ** self.power

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (self.power * inputs[0] ** (self.power - 1) * output_grads[0],)


@register_operator("CppPow", domain=DOMAIN)
class CppPow(CppOperator):
    """x to a whole power, in C++."""

    source = """
    template <typename T>
    struct CppPow : deep5::Operator {
      int64_t power;
      explicit CppPow(int64_t power) : power(power) {}
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        for (int64_t i = 0; i < x.size(); ++i) y[i] = deep5::power(x[i], power);
      }
      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<T> dx) {
        for (int64_t i = 0; i < x.size(); ++i)
          dx[i] = static_cast<T>(static_cast<T>(power) * deep5::power(x[i], power - 1) * dy[i]);
      }
    };
    """

    def __init__(self, power: int = 3) -> None:
        super().__init__(power=power)

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        (x,) = inputs
        return (x,)


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
    """(x, y) -> (first half of x + y's rows, their product): extents are computed with; two outputs."""

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


@register_operator("Forward", domain=DOMAIN)
class Forward(CppOperator):
    """No backward in C++."""

    source = """
    template <typename T>
    struct Forward : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        for (int64_t i = 0; i < x.size(); ++i) y[i] = x[i] + T(1);
      }
    };
    """

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs


POWERS = [PyPow, CppPow]
modes = pytest.mark.parametrize(
    "framework", [TORCH, pytest.param(COMPILED, marks=pytest.mark.slow)], ids=["eager", "compiled"]
)
both = pytest.mark.parametrize("kind", POWERS, ids=["python", "cpp"])


@pytest.fixture(autouse=True, scope="module")
def _inductor() -> None:
    """Loaded as deep5 loads it: torch warns of what it uses itself."""
    Compiler()


def normal(*shape: int, dtype: str = "float64") -> Any:
    return torch.from_numpy(RNG.standard_normal(shape)).to(getattr(torch, dtype))


def weighted(rows: int = 4, dtype: str = "float64") -> tuple[Any, Any, Any]:
    return normal(3, 5, dtype=dtype), normal(5, dtype=dtype), torch.arange(rows) % 3


# Values and gradients ------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 4), (1,), (), (0, 3)])
def test_values_and_gradients_are_those_of_the_formula(kind: type, dtype: str, shape: tuple[int, ...]) -> None:
    run = TORCH.operator(kind(3))
    x, dy = normal(*shape, dtype=dtype).requires_grad_(), normal(*shape, dtype=dtype)
    y = run(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    assert y.dtype == dx.dtype == x.dtype
    assert y.shape == dx.shape == shape
    exact, upstream = x.detach().double().numpy(), dy.double().numpy()
    # A handful of roundings of the element type, each half a unit in the last place.
    tolerance = 4 * torch.finfo(x.dtype).eps
    # Below the smallest normal number units no longer shrink with the value: one of x * x is then tripled, times dy.
    unit = 16 * torch.finfo(x.dtype).smallest_normal * torch.finfo(x.dtype).eps
    np.testing.assert_allclose(y.detach().double().numpy(), exact**3, rtol=tolerance, atol=unit)
    np.testing.assert_allclose(dx.double().numpy(), 3 * exact**2 * upstream, rtol=tolerance, atol=unit)
    with torch.no_grad():
        assert torch.equal(run(x), y)
        assert not run(x).requires_grad


@both
def test_gradcheck(kind: type) -> None:
    assert torch.autograd.gradcheck(TORCH.operator(kind(3)), (normal(3, 2).requires_grad_(),))


@pytest.mark.parametrize("operator", [Weighted(), Halves()], ids=["cpp", "python"])
def test_gradcheck_of_several_inputs_and_outputs(operator: d5.Operator) -> None:
    inputs = weighted() if isinstance(operator, Weighted) else (normal(4, 2), normal(4, 2))
    for value in inputs:
        value.requires_grad_(value.is_floating_point())
    assert torch.autograd.gradcheck(TORCH.operator(operator), inputs)


def test_a_second_derivative_in_python_is_right_and_in_cpp_refused() -> None:
    x = normal(3).requires_grad_()
    assert torch.autograd.gradgradcheck(TORCH.operator(PyPow(3)), (x,))
    (dx,) = torch.autograd.grad(TORCH.operator(CppPow(3))(x).sum(), x, create_graph=True)
    with pytest.raises(Unsupported, match=r"CppPow in C\+\+ has no second derivative"):
        dx.sum().backward()


def test_one_operator_takes_several_element_types_one_after_the_other() -> None:
    run = TORCH.operator(CppPow(2))
    for dtype in (torch.float32, torch.float64, torch.int64, torch.float16, torch.float32, torch.int32):
        x = torch.tensor([1, -3, 2]).to(dtype)
        assert torch.equal(run(x), torch.tensor([1, 9, 4]).to(dtype))
        assert run(x).dtype == dtype


def test_an_integer_input_and_output_have_no_gradient_and_only_needed_ones_are_computed() -> None:
    operator = Weighted()
    run, (x, w, rows) = TORCH.operator(operator), weighted()
    y, signs = run(x.requires_grad_(), w, rows)
    assert y.requires_grad
    assert not signs.requires_grad
    assert signs.dtype == torch.int32
    expected = x.detach()[rows] * w
    assert torch.equal(y, expected)
    assert torch.equal(signs, torch.sign(expected).int())
    operator.report()
    y.sum().backward()
    assert operator.report() == {"dx": 1.0}
    torch.testing.assert_close(x.grad, w * torch.tensor([[2.0], [1.0], [1.0]], dtype=torch.float64))


def test_outputs_that_nobody_used_have_the_gradient_zero() -> None:
    x, y = normal(4, 2).requires_grad_(), normal(4, 2).requires_grad_()
    half, _ = TORCH.operator(Halves())(x, y)
    half.sum().backward()
    assert torch.equal(x.grad, torch.tensor([[1.0, 1], [1, 1], [0, 0], [0, 0]], dtype=torch.float64))
    assert torch.equal(x.grad, y.grad)


# Memory --------------------------------------------------------------------------------------------------------------


@both
def test_memory_of_any_layout_is_read_right(kind: type) -> None:
    run, x = TORCH.operator(kind(3)), normal(4, 6)
    image = normal(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for given in (
        x.t(),
        x[:, ::2],
        x[1],
        x[:, 1:2],
        normal(1, 1).expand(3, 4),
        torch.flip(x, (0,)),
        image,
        x[1:, 1:],
        torch._neg_view(x),
    ):
        torch.testing.assert_close(run(given), given**3, rtol=1e-14, atol=0)  # two products in float64
        leaf = given.detach().requires_grad_()
        run(leaf).sum().backward()  # whose upstream gradient is one number, expanded
        torch.testing.assert_close(leaf.grad, 3 * given**2, rtol=1e-14, atol=0)


def test_memory_that_is_not_aligned_is_copied() -> None:
    raw = torch.zeros(33, dtype=torch.uint8)
    odd = torch.frombuffer(memoryview(raw.numpy())[1:], dtype=torch.float64)
    odd.copy_(torch.tensor([1.0, 2, 3, 4]))
    assert odd.data_ptr() % 8
    assert torch.equal(TORCH.operator(CppPow(2))(odd), torch.tensor([1.0, 4, 9, 16], dtype=torch.float64))


def test_contiguous_memory_is_the_tensors_own() -> None:
    x, where = torch.zeros(5000), TORCH.operator(Where())
    for run in (where, torch.compile(where, fullgraph=True)):
        for given in (x, x[2:]):
            places = run(given)
            assert addresses(places) == [given.data_ptr(), places.data_ptr()]


class Lies(CppOperator):
    """x squared, and where x lies: its address and strides. Where dy and x lie for the backward pass it reports."""

    source = """
    template <typename T>
    struct Lies : deep5::Operator {
      void forward(deep5::Strided<const T> x, deep5::Tensor<T> y, deep5::Tensor<int64_t> place) {
        for (int64_t i = 0; i < x.shape(0); ++i)
          for (int64_t j = 0; j < x.shape(1); ++j) y(i, j) = x(i, j) * x(i, j);
        place[0] = reinterpret_cast<int64_t>(x.data());
        place[1] = x.stride(0);
        place[2] = x.stride(1);
      }
      void backward(deep5::Strided<const T> dy, deep5::Strided<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<const int64_t> place, deep5::Tensor<T> dx) {
        for (int64_t i = 0; i < x.shape(0); ++i)
          for (int64_t j = 0; j < x.shape(1); ++j) dx(i, j) = dy(i, j) * (x(i, j) + x(i, j));
        report("x", static_cast<double>(reinterpret_cast<int64_t>(x.data())));
        report("strides of dy", static_cast<double>(dy.stride(0) + dy.stride(1)));
      }
    };
    """

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return (*inputs, d5.TensorSpec(shape=(3,), dtype="int64"))


def table() -> Any:
    """Different numbers, 6 by 8, whose squares are exact."""
    return torch.arange(1.0, 49, dtype=torch.float64).view(6, 8)


def views(x: Any) -> list[Any]:
    """Of other strides than those of contiguous memory, the last two with several elements in one place."""
    return [x.t(), x[::2, 1::3], x[:, :4], x[:1].expand(6, 8), x[2, 3].expand(3, 2)]


def test_an_input_that_is_declared_strided_is_taken_as_it_lies() -> None:
    operator = Lies()
    run = TORCH.operator(operator)
    x = table()
    for given in (x, *views(x)):
        leaf = given.detach().requires_grad_()
        assert leaf.stride() == given.stride()
        for y, place in (run(given), run(leaf)):
            assert torch.equal(y, given * given)
            assert place.tolist() == [given.data_ptr(), *given.stride()]
        y.sum().backward()
        assert torch.equal(leaf.grad, given + given)
        # Addresses are below 2^53; the gradient of a sum is one number, expanded.
        assert operator.report() == {"x": given.data_ptr(), "strides of dy": 0}


def test_a_strided_input_whose_memory_does_not_do_is_copied() -> None:
    run, x = TORCH.operator(Lies()), table()
    negated = torch._neg_view(x.t())
    assert torch.equal(run(negated)[0], x.t() * x.t())
    raw = torch.zeros(8 * 48 + 1, dtype=torch.uint8)
    odd = torch.frombuffer(memoryview(raw.numpy())[1:], dtype=torch.float64).view(6, 8)
    odd.copy_(x)
    for given, same in zip(views(odd), views(x), strict=True):
        assert given.data_ptr() % 8
        y, place = run(given)
        assert torch.equal(y, same * same)
        assert place[1:].tolist() == [given.shape[1], 1]


@pytest.mark.slow
def test_under_compile_a_strided_input_is_taken_as_it_lies_too() -> None:
    run, x = TORCH.operator(Lies()), table()
    compiled = torch.compile(lambda x: run(x.t() + 1)[0] + run(x[::2, 1::3].t())[0].sum(), fullgraph=True)
    leaf = x.clone().requires_grad_()
    y = compiled(leaf)
    picked = x[::2, 1::3]
    assert torch.equal(y, (x.t() + 1) ** 2 + (picked**2).sum())  # whole numbers all
    y.sum().backward()
    wanted = 2 * (x + 1)
    wanted[::2, 1::3] += 2 * 48 * picked  # by each of the 48 elements of y
    assert torch.equal(leaf.grad, wanted)
    _, place = torch.compile(lambda x: run(x.t()), fullgraph=True)(x)
    assert place.tolist() == [x.data_ptr(), *x.t().stride()]


# Under torch.compile -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@both
def test_under_compile_one_graph_serves_batches_of_any_size(kind: type) -> None:
    square, cube = TORCH.operator(kind(2)), TORCH.operator(kind(3))
    count = CompileCounterWithBackend("inductor")

    @torch.compile(fullgraph=True, backend=count)
    def both_powers(x: Any, y: Any) -> Any:
        return square(x) * cube(y) + 1  # two operators of one class, which must not be taken for each other

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
from test_operator_pytorch import TORCH, {name}
power = int(sys.argv[1])
run = TORCH.operator({name}(power))
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


class _ByHand(torch.autograd.Function):
    """What somebody writes who does without deep5."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * 3 * x**2


def test_a_call_converts_nothing_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    x, leaf = torch.ones(1), torch.ones(1, requires_grad=True)
    calls = [TORCH.operator(CppPow(3)), TORCH.operator(PyPow(3))]
    expected = [[call(x).clone(), call(leaf).detach().clone()] for call in calls]
    for name in ("numpy", "__array__", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, lambda self, *given: pytest.fail("a tensor was converted to NumPy"))
    found = [[call(x).clone(), call(leaf).detach().clone()] for call in calls]
    for one, other in zip(expected, found, strict=True):
        assert all(torch.equal(mine, yours) for mine, yours in zip(one, other, strict=True))


def test_what_torch_cannot_trace_is_refused_with_the_reason() -> None:
    class Peeks(PyPow):
        def forward(self, *inputs: Any) -> Any:
            return inputs[0] if float(inputs[0].sum()) > 0 else -inputs[0]

    run = torch.compile(TORCH.operator(Peeks()), fullgraph=True)
    with pytest.raises(RuntimeError, match=r"Peeks\.forward cannot be traced by torch .*must not depend on the values"):
        run(torch.ones(3))
    with pytest.raises(Unsupported, match=r"Peeks\.forward cannot be traced"):
        COMPILED.operator_executor(Peeks()).inference(torch.ones(3))


# The contract --------------------------------------------------------------------------------------------------------


class Broken(PyPow):
    """Breaks the contract in the way that it is told."""

    def __init__(self, forward: Callable[..., Any] | None = None, backward: Callable[..., Any] | None = None) -> None:
        super().__init__(2)
        self._forward, self._backward = forward, backward

    def forward(self, *inputs: Any) -> Any:
        return self._forward(*inputs) if self._forward else super().forward(*inputs)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return self._backward(inputs[0]) if self._backward else super().backward(output_grads, inputs, outputs, needs)


def raising(*inputs: Any) -> Any:
    raise ValueError("an accident")


FORWARDS = {
    "count": (lambda x: (x, x), r"forward returned 2 outputs; allowed: 1"),
    "shape": (lambda x: x[1:], r"forward: output 0: got shape \(2, 2\), expected float32\[3, 2\]"),
    "dtype": (lambda x: x.double(), r"forward: output 0: got dtype float64, expected float32"),
    "kind": (lambda x: np.ones((3, 2), "float32"), r"forward returned array.* allowed: a torch\.Tensor"),
    "raises": (raising, r"forward raised ValueError: an accident"),
}
BACKWARDS = {
    "count": (lambda x: (x, x), r"backward returned 2 gradients; allowed: one an input, 1"),
    "shape": (lambda x: (x[1:],), r"gradient by input 0: got float32\[2, 2\], expected float32\[3, 2\]"),
    "dtype": (lambda x: (x.double(),), r"gradient by input 0: got float64\[3, 2\]"),
    "none": (lambda x: (None,), r"backward returned None as the gradient by input 0"),
    "raises": (raising, r"backward raised ValueError: an accident"),
}


@pytest.mark.parametrize("case", FORWARDS)
def test_a_wrong_forward_is_named(case: str) -> None:
    forward, message = FORWARDS[case]
    for run in (TORCH.operator(Broken(forward)), TORCH.operator_executor(Broken(forward)).inference):
        with pytest.raises(OperatorError, match=message):
            run(torch.ones(3, 2))


@pytest.mark.parametrize("case", BACKWARDS)
def test_a_wrong_backward_is_named(case: str) -> None:
    backward, message = BACKWARDS[case]
    y = TORCH.operator(Broken(None, backward))(torch.ones(3, 2, requires_grad=True))
    with pytest.raises(OperatorError, match=message):
        y.sum().backward()


@pytest.mark.parametrize("case", ["count", "shape", "dtype"])
def test_the_contract_holds_while_torch_traces(case: str) -> None:
    run = torch.compile(TORCH.operator(Broken(FORWARDS[case][0])), fullgraph=True, dynamic=True)
    with pytest.raises(RuntimeError, match=r"OperatorError.*Broken\.forward"):
        run(torch.ones(3, 2))
    executor = COMPILED.operator_executor(Broken(FORWARDS[case][0]))
    with pytest.raises(OperatorError, match=FORWARDS[case][1]):
        executor.inference(torch.ones(3, 2))
    executor = COMPILED.operator_executor(Broken(None, BACKWARDS[case][0]))
    with pytest.raises(OperatorError, match=BACKWARDS[case][1]):
        executor.inference_and_backprop((torch.ones(3, 2),), (torch.ones(3, 2),))


@both
def test_inputs_that_an_operator_does_not_take(kind: type) -> None:
    run = TORCH.operator(kind())
    with pytest.raises(OperatorError, match=r"specs raised ValueError"):
        run(torch.ones(2), torch.ones(2))
    with pytest.raises(ShapeError, match=r"Pow: got ndarray as input 0; allowed: a torch\.Tensor"):
        run(np.ones(2))
    with pytest.raises(ShapeError, match=r"Weighted: got float32\[2\] and float32\[3\]; allowed: a matrix"):
        TORCH.operator(Weighted())(torch.ones(2), torch.ones(3), torch.arange(2))
    with pytest.raises(ShapeError, match=r"got an input of complex64; allowed: float32"):
        TORCH.operator(CppPow())(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ShapeError, match=r"got inputs of float32, float32, int32; allowed"):
        TORCH.operator(Weighted())(torch.ones(2, 2), torch.ones(2), torch.arange(2, dtype=torch.int32))
    with pytest.raises(Unsupported, match=r"got tensors on meta; allowed: cpu, and cuda"):
        TORCH.operator(CppPow())(torch.ones(2, device="meta"))


def test_tensors_without_memory_are_refused() -> None:
    run = TORCH.operator(CppPow())
    run(torch.eye(2))
    with pytest.raises(ShapeError, match=r"an input has no memory of its own"):
        run(torch.eye(2).to_sparse())
    with pytest.raises(Unsupported, match=r"CppPow in C\+\+ does not run inside the transformations of torch\.func"):
        torch.func.grad(lambda x: run(x).sum())(torch.eye(2))


def test_an_operator_in_cpp_that_fails_says_so() -> None:
    class Fails(CppPow):
        template = "Fails"
        source = """
        #include <stdexcept>
        template <typename T>
        struct Fails : deep5::Operator {
          explicit Fails(int64_t) {}
          void forward(deep5::Tensor<const T>, deep5::Tensor<T>) { throw std::runtime_error("no luck"); }
        };
        """

    with pytest.raises(OperatorError, match=r"Fails failed: no luck"):
        TORCH.operator(Fails())(torch.ones(2))
    with pytest.raises(OperatorError, match=r"no luck"):
        torch.compile(TORCH.operator(Fails()), fullgraph=True)(torch.ones(2))


def test_without_a_backward_only_values_are_to_be_had() -> None:
    run, x = TORCH.operator(Forward()), torch.ones(2, requires_grad=True)
    y = run(x)
    assert torch.equal(y, torch.full((2,), 2.0))
    with pytest.raises(Unsupported, match=r"Forward has no backward in C\+\+, so nothing can be trained through it"):
        y.sum().backward()
    for framework in (TORCH, COMPILED):
        with pytest.raises(Unsupported, match=r"Forward has no backward in C\+\+"):
            framework.operator_executor(Forward()).inference_and_backprop((torch.ones(2),), (torch.ones(2),))


# Lifetime ------------------------------------------------------------------------------------------------------------


def collected(reference: Callable[[], Any]) -> bool:
    """Whether it is gone; the memory of tensors is no part of Python's cycles, so that it takes more than one look."""
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
@pytest.mark.parametrize("compiled", [False, True])
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
    with pytest.raises(OperatorError, match=r"the operator of this graph is gone; remedy: keep what"):
        graph(torch.ones(3))


# Executors, native operators, ONNX's ---------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", [TORCH, COMPILED], ids=["eager", "compiled"])
@pytest.mark.parametrize("operator", [PyPow(3), CppPow(3)], ids=["python", "cpp"])
def test_an_executor_runs_forward_and_backward(framework: PyTorch, operator: d5.Operator) -> None:
    executor = framework.operator_executor(operator)
    assert executor.operator is operator
    assert str(executor.device) == "cpu"
    for shape in ((2, 3), (4,)):
        x, dy = RNG.standard_normal(shape), RNG.standard_normal(shape)
        native = executor.arrays(x, dy)
        (y,) = executor.inference(native[0])
        np.testing.assert_allclose(y.numpy(), x**3, rtol=1e-14)  # two products in float64
        (again,), (dx,) = executor.inference_and_backprop(native[:1], native[1:])
        assert torch.equal(again, y)
        assert not again.requires_grad
        assert not native[0].requires_grad
        np.testing.assert_allclose(dx.numpy(), 3 * x**2 * dy, rtol=1e-14)
    executor.synchronize()
    assert executor.settings()["framework"] == "pytorch"
    assert executor.settings()["threads"] == torch.get_num_threads()


@pytest.mark.parametrize("framework", [TORCH, COMPILED], ids=["eager", "compiled"])
def test_an_executor_computes_the_gradients_that_are_needed(framework: PyTorch) -> None:
    operator = Weighted()
    executor, (x, w, rows) = framework.operator_executor(operator), weighted()
    (y, signs), gradients = executor.inference_and_backprop((x, w, rows), (torch.ones(4, 5).double(), None))
    assert [gradient is None for gradient in gradients] == [False, False, True]
    assert signs.dtype == torch.int32
    torch.testing.assert_close(gradients[1], x[rows].sum(0))
    operator.report()
    _, gradients = executor.inference_and_backprop((x, w, rows), (torch.ones_like(y), None), needs=(False, True, False))
    assert [gradient is None for gradient in gradients] == [True, False, True]
    assert operator.report() == {"rows": 4.0, "dw": 1.0}
    with pytest.raises(ShapeError, match=r"Weighted: a gradient is asked for by input 2, which is int64"):
        executor.inference_and_backprop((x, w, rows), (y, None), needs=(True, True, True))
    with pytest.raises(ShapeError, match=r"the gradient by output 0: got no array of the framework's"):
        executor.inference_and_backprop((x, w, rows), (None, None))
    with pytest.raises(ShapeError, match=r"got 1 output_grads; allowed: one an output, 2"):
        executor.inference_and_backprop((x, w, rows), (y,))
    with pytest.raises(ShapeError, match=r"got 2 needs; allowed: one an input, 3"):
        executor.inference_and_backprop((x, w, rows), (y, None), needs=(True, True))
    with pytest.raises(ShapeError, match=r"got list as input 0"):
        executor.inference_and_backprop(([1.0], w, rows), (y, None))


def test_arrays_of_every_kind_become_tensors() -> None:
    import ml_dtypes

    executor = TORCH.operator_executor(PyPow())
    x = RNG.standard_normal((3, 4)).astype("float32")
    frozen = x.copy()
    frozen.flags.writeable = False
    given = [x, x.T, x[:, ::-1], x.astype(">f4"), x.astype(ml_dtypes.bfloat16), torch.from_numpy(x), frozen, 3.0]
    for value, tensor in zip(given, executor.arrays(*given), strict=True):
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_array_equal(tensor.float().numpy(), np.asarray(value, dtype="float32"))
    assert executor.arrays(x)[0].data_ptr() == torch.from_numpy(x).data_ptr()
    with pytest.raises(ShapeError, match=r"PyPow: got str as value 0, which torch cannot take"):
        executor.arrays("text")


@modes
def test_a_native_operator_is_the_function_itself(framework: PyTorch) -> None:
    bare = NativeOperator(F.gelu, framework="pytorch")
    assert TORCH.operator(bare) is F.gelu
    executor = framework.operator_executor(NativeOperator(F.conv2d, framework="pytorch", padding=1))
    x, w = normal(2, 3, 5, 5, dtype="float32"), normal(4, 3, 3, 3, dtype="float32")
    (y,), (dx, dw) = executor.inference_and_backprop((x, w), (torch.ones(2, 4, 5, 5),))
    leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
    expected = F.conv2d(*leaves, padding=1)
    expected.sum().backward()
    # The same kernels of torch; compiled code may choose another order of sums over 27 terms.
    torch.testing.assert_close(y, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dx, leaves[0].grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dw, leaves[1].grad, rtol=1e-5, atol=1e-4)


def test_native_operators_that_do_not_fit_are_refused() -> None:
    for make in (TORCH.operator, TORCH.operator_executor):
        with pytest.raises(Unsupported, match=r"relu is a function of jax, which runs on that framework alone"):
            make(NativeOperator(F.relu, framework="jax"))
    wrong = NativeOperator(torch.sum, framework="pytorch", specs=lambda x: (x,))
    with pytest.raises(OperatorError, match=r"sum\.forward: output 0: got shape \(\), expected float32\[3\]"):
        TORCH.operator(wrong)(torch.ones(3))
    executor = TORCH.operator_executor(NativeOperator(torch.matmul, framework="pytorch"))
    with pytest.raises(OperatorError, match=r"matmul failed on torch: RuntimeError: .*shapes cannot be multiplied"):
        executor.inference(torch.ones(2, 3), torch.ones(2, 3))
    constant = TORCH.operator_executor(NativeOperator(torch.argmax, framework="pytorch"))
    with pytest.raises(Unsupported, match=r"argmax has no gradient on torch"):
        constant.inference_and_backprop((torch.ones(3),), (None,))


@modes
def test_an_operator_of_onnx_runs_as_a_network_of_one_node(framework: PyTorch) -> None:
    executor = framework.operator_executor(ONNXOperator("Conv", pads=[1, 1, 1, 1]))
    for rows in (2, 3):
        x, w = normal(rows, 3, 5, 5), normal(4, 3, 3, 3)
        (y,) = executor.inference(x, w)
        torch.testing.assert_close(y, F.conv2d(x, w, padding=1))
        (_,), (dx, dw) = executor.inference_and_backprop((x, w), (torch.ones_like(y),))
        leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
        F.conv2d(*leaves, padding=1).sum().backward()
        torch.testing.assert_close(dx, leaves[0].grad)
        torch.testing.assert_close(dw, leaves[1].grad)


def test_operators_of_onnx_that_do_not_fit_are_refused() -> None:
    split = TORCH.operator(ONNXOperator("TopK", outputs=2, axis=0))
    with pytest.raises((Unsupported, ShapeError), match=r"TopK"):
        split(torch.ones(3), torch.tensor([2]))
    with pytest.raises(ShapeError, match=r"MatMul: got ndarray as input 0"):
        TORCH.operator(ONNXOperator("MatMul"))(np.ones((2, 2)), np.ones((2, 2)))
    assert torch.equal(TORCH.operator(ONNXOperator("MatMul"))(torch.eye(2), torch.eye(2)), torch.eye(2))
    with pytest.raises(Deep5Error):
        TORCH.operator(ONNXOperator("MatMul"))(torch.ones(2, 3), torch.ones(2, 3))


# Networks ------------------------------------------------------------------------------------------------------------


def powered(op: str, power: int = 3) -> Network:
    """x W, to a power, then a mean: by a registered operator, or by products."""
    build = NetworkBuilder("powered", dtype="float64")
    x = build.input("x", ("N", 4))
    w = build.parameter("w", (4, 3), lambda rng, shape: np.linspace(-1, 1, 12).reshape(shape))
    h = build.op("MatMul", x, w)
    if op == "Mul":
        y = h
        for _ in range(power - 1):
            y = build.op("Mul", y, h)
    else:
        y = build.op(op, h, domain=DOMAIN, power=power)
    loss = build.op("ReduceMean", build.op("Mul", y, y), keepdims=0)
    return build.network({"y": y, "loss": loss})


@pytest.mark.parametrize("op", ["PyPow", "CppPow"])
@pytest.mark.parametrize("framework", [TORCH, COMPILED], ids=["eager", "compiled"])
def test_a_network_with_a_registered_operator_trains_as_the_formula_does(framework: PyTorch, op: str) -> None:
    ours, formula = framework.executor(powered(op)), TORCH.executor(powered("Mul"))
    rule = d5.SGD(lr=0.01)
    steps = [executor.train_step(rule) for executor in (ours, formula)]
    for step, rows in enumerate((5, 6, 7)):
        feed = {"x": RNG.standard_normal((rows, 4))}
        got, expected = (run(feed, d5.StepInfo(step=step, batch_size=rows)) for run in steps)
        # Sums and products of a dozen terms in float64, in another order.
        np.testing.assert_allclose(got["loss"], expected["loss"], rtol=1e-12)
        np.testing.assert_allclose(got["y"], expected["y"], rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(ours.parameters()["w"], formula.parameters()["w"], rtol=1e-12)
    feed = {"x": RNG.standard_normal((3, 4))}
    np.testing.assert_allclose(ours.inference(feed)["y"], formula.inference(feed)["y"], rtol=1e-11, atol=1e-14)
    if framework is COMPILED:
        assert ours.compilations == 2  # training and evaluation, each for batches of any size


@modes
def test_a_network_with_several_outputs_of_a_node(framework: PyTorch) -> None:
    build = NetworkBuilder("several", dtype="float64")
    x, rows = build.input("x", (3, 5)), build.input("rows", ("N",), "int64")
    w = build.parameter("w", (5,), lambda rng, shape: np.arange(1.0, 6.0))
    y, signs = build.op("Weighted", x, w, rows, domain=DOMAIN, outputs=2)
    half = build.op("Halves", y, y, domain=DOMAIN, outputs=1)  # of whose outputs the first alone is asked for
    loss = build.op("ReduceMean", half, keepdims=0)
    executor = framework.executor(build.network({"signs": signs, "half": half, "loss": loss}))
    feed = {"x": RNG.standard_normal((3, 5)), "rows": np.array([2, 0, 1, 1])}
    outputs = executor.inference_and_backprop(feed)
    expected = feed["x"][feed["rows"]] * np.arange(1.0, 6.0)
    np.testing.assert_array_equal(outputs["signs"], np.sign(expected))
    np.testing.assert_allclose(outputs["half"], 2 * expected[:2], rtol=1e-14)
    np.testing.assert_allclose(executor.gradients()["w"], 2 * feed["x"][[2, 0]].sum(0) / 10, rtol=1e-13)


@pytest.mark.parametrize("op", ["PyPow", "CppPow"])
def test_a_gradient_network_runs_on_torch(op: str) -> None:
    build = NetworkBuilder("gradients", dtype="float64")
    x, values = build.input("x", (4,)), np.linspace(-1, 1, 4)
    w = build.parameter("w", (4,), lambda rng, shape: values)
    y = build.op(op, build.op("Mul", x, w), domain=DOMAIN, power=3)
    network = gradient_network(build.network({"y": y, "loss": build.op("MatMul", y, y)}), "loss", ["w"])
    feed = {"x": RNG.standard_normal(4), "loss_scale": np.array(1.0)}
    outputs = TORCH.executor(network).inference(feed)
    (name,) = [name for name in network.outputs if name not in ("y", "loss")]
    # The loss is the sum of (x w)^6; a dozen products in float64.
    np.testing.assert_allclose(outputs[name], 6 * feed["x"] ** 6 * values**5, rtol=1e-13)


@modes
def test_a_network_through_an_operator_without_backward_runs_and_does_not_train(framework: PyTorch) -> None:
    build = NetworkBuilder("forward")
    x = build.input("x", ("N", 2))
    w = build.parameter("w", (2,), lambda rng, shape: np.ones(shape))
    y = build.op("Forward", build.op("Mul", x, w), domain=DOMAIN)
    executor = framework.executor(build.network({"y": y, "loss": build.op("ReduceMean", y, keepdims=0)}))
    feed = {"x": np.ones((3, 2), "float32")}
    np.testing.assert_array_equal(executor.inference(feed)["y"], np.full((3, 2), 2))
    with pytest.raises(Unsupported, match=r"Forward has no backward in C\+\+"):
        executor.inference_and_backprop(feed)
    with pytest.raises(Unsupported, match=r"Forward has no backward in C\+\+"):
        executor.train_step(d5.SGD(lr=0.1))(feed, d5.StepInfo(batch_size=3))


def test_nodes_that_cannot_run_are_refused_with_the_reason() -> None:
    @register_operator("Elsewhere", domain=DOMAIN)
    class Elsewhere(NativeOperator):
        def __init__(self) -> None:
            super().__init__(abs, framework="jax", specs=lambda x: (x,))

    def reason(op: str, *inputs: ir.Value | None, **attributes: Any) -> str:
        answer = TORCH.supports(ir.node(op, inputs, attributes, domain=DOMAIN))
        assert bool(answer) is not bool(answer.reason)
        return answer.reason

    x = ir.Value(name="x", shape=ir.Shape((2,)), type=ir.TensorType(ir.DataType.FLOAT))
    wide = ir.Value(name="wide", shape=ir.Shape((2,)), type=ir.TensorType(ir.DataType.UINT64))
    assert reason("PyPow", x) == reason("CppPow", x, power=2) == ""
    assert "is a function of jax, which runs on that framework alone" in reason("Elsewhere", x)
    assert "the input 1 is left out; allowed: all inputs of a registered operator" in reason("Halves", x, None)
    assert "the element type UINT64 of 'wide'" in reason("PyPow", wide)
    assert "with the attributes {'order': 2} cannot be made" in reason("PyPow", x, order=2)


def test_a_network_is_refused_on_a_device_that_an_operator_has_no_source_for() -> None:
    # The refusal comes before anything is put on the device, which need not be there.
    with pytest.raises(Unsupported, match=r"CppPow_1 \(CppPow\): CppPow has no cuda, so it does not run on cuda"):
        PyTorchExecutor(powered("CppPow"), TORCH, device=d5.GPUDevice())


@pytest.mark.gpu
@pytest.mark.parametrize("framework", [TORCH, COMPILED], ids=["eager", "compiled"])
def test_on_a_graphics_processor_python_runs_and_cpp_without_cuda_is_refused(framework: PyTorch) -> None:
    executor = framework.operator_executor(PyPow(3), device="cuda")
    (x,) = executor.arrays(RNG.standard_normal(5))
    (y,), (dx,) = executor.inference_and_backprop((x,), (torch.ones_like(x),))
    torch.testing.assert_close(y, x**3)
    torch.testing.assert_close(dx, 3 * x**2)
    with pytest.raises(Unsupported, match=r"CppPow has no cuda, so it does not run on cuda"):
        framework.operator_executor(CppPow(3), device="cuda")
    with pytest.raises(Unsupported, match=r"CppPow has no cuda"):
        framework.executor(powered("CppPow"), device="cuda")
    with pytest.raises(Unsupported, match=r"CppPow has no cuda"):
        TORCH.operator(CppPow(3))(x)


@pytest.mark.gpu
def test_on_a_graphics_processor_a_cuda_source_runs_on_the_current_stream() -> None:
    class Twice(CppOperator):
        source = """
        template <typename T>
        struct Twice : deep5::Operator {
          void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
            for (int64_t i = 0; i < x.size(); ++i) y[i] = x[i] + x[i];
          }
          void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T>, deep5::Tensor<const T>,
                        deep5::Tensor<T> dx) {
            for (int64_t i = 0; i < dx.size(); ++i) dx[i] = dy[i] + dy[i];
          }
        };
        """
        cuda = """
        template <typename T>
        __global__ void twice(const T *x, T *y, int64_t size) {
          int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
          if (i < size) y[i] = x[i] + x[i];
        }
        template <typename T>
        struct Twice : deep5::Operator {
          static void launch(const T *x, T *y, int64_t size) {
            auto stream = static_cast<cudaStream_t>(deep5::Operator::stream());
            if (size) twice<T><<<(size + 255) / 256, 256, 0, stream>>>(x, y, size);
          }
          void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) { launch(x.data(), y.data(), x.size()); }
          void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T>, deep5::Tensor<const T>,
                        deep5::Tensor<T> dx) {
            launch(dy.data(), dx.data(), dx.size());
          }
        };
        """

        def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
            return inputs

    for framework in (TORCH, COMPILED):
        executor = framework.operator_executor(Twice(), device="cuda")
        (x,) = executor.arrays(RNG.standard_normal(1000).astype("float32"))
        with torch.cuda.stream(torch.cuda.Stream()):
            (y,), (dx,) = executor.inference_and_backprop((x,), (x,))
            torch.cuda.current_stream().synchronize()
        assert torch.equal(y, 2 * x)
        assert torch.equal(dx, 2 * x)


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(Unsupported, match=r"no device cuda:99 for pytorch here"):
        TORCH.operator_executor(PyPow(), device="cuda:99")
    with pytest.raises(UsageError, match=r"unknown device 'tpu'"):
        TORCH.operator_executor(PyPow(), device="tpu")


class InPlace(d5.Operator):
    """Changes what it is given, in one of its methods."""

    def __init__(self, method: str) -> None:
        self.method = method

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs

    def forward(self, *inputs: Any) -> Any:
        x = inputs[0]
        if self.method == "forward":
            x += 1
        return x * 2

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        y = outputs[0]
        if self.method == "backward":
            y += 1
        return (output_grads[0] * 2,)


@pytest.mark.parametrize("method", ["forward", "backward"])
def test_a_method_that_changes_what_it_is_given(method: str) -> None:
    executor = d5.framework("pytorch").operator_executor(InPlace(method))
    (x,) = executor.arrays(np.zeros(3))
    with pytest.raises(OperatorError, match=rf"InPlace\.{method} changed what it was given, value 0|value 1, in place"):
        executor.inference_and_backprop((x,), (torch.ones(3, dtype=torch.float64),))
    operator = d5.framework("pytorch").operator(InPlace(method))

    def differentiate() -> None:
        operator(torch.zeros(3, requires_grad=True) * 1).sum().backward()

    with pytest.raises(OperatorError, match=rf"InPlace\.{method} changed what it was given"):
        differentiate()
