"""Operators on PyTorch, beyond the suite of all back-ends: its memory layouts, and CUDA sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import deep5 as d5
from backend_operators import DOMAIN, CppMixed, CppPow, PyMixed, PyPow, mixed_values, powers
from backends import many
from deep5.core.errors import ShapeError, Unsupported
from deep5.frameworks.pytorch.executor import PyTorchExecutor
from deep5.frameworks.pytorch.framework import PyTorch
from deep5.operators.cpp import CppOperator

TORCH, COMPILED = PyTorch(), PyTorch("compiled")
RNG = np.random.default_rng(4)


def normal(*shape: int, dtype: str = "float64") -> Any:
    return torch.from_numpy(RNG.standard_normal(shape)).to(getattr(torch, dtype))


@pytest.mark.parametrize("operator", [PyPow(3), CppPow(3), PyMixed(), CppMixed()], ids=lambda made: type(made).__name__)
def test_gradcheck(operator: d5.Operator) -> None:
    values = mixed_values() if "Mixed" in type(operator).__name__ else [mixed_values()[0]]
    inputs = [torch.from_numpy(value).requires_grad_(value.dtype.kind == "f") for value in values]
    native = TORCH.operator(operator)

    def run(*given: Any) -> tuple[Any, ...]:
        # torch's gradcheck miscounts when an integer output is between others.
        return tuple(value for value in many(native(*given)) if value.is_floating_point())

    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("kind", [PyPow, CppPow])
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
        run(leaf).sum().backward()  # the upstream gradient is one number, expanded
        torch.testing.assert_close(leaf.grad, 3 * given**2, rtol=1e-14, atol=0)


def test_memory_that_is_not_aligned_is_copied() -> None:
    raw = torch.zeros(33, dtype=torch.uint8)
    odd = torch.frombuffer(memoryview(raw.numpy())[1:], dtype=torch.float64)
    odd.copy_(torch.tensor([1.0, 2, 3, 4]))
    assert odd.data_ptr() % 8
    assert torch.equal(TORCH.operator(CppPow(2))(odd), torch.tensor([1.0, 4, 9, 16], dtype=torch.float64))


class Lies(CppOperator):
    """x squared, and the address and strides of x. Reports the memory of dy and x for the backward pass."""

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
    """Distinct numbers, 6 by 8, with exact squares."""
    return torch.arange(1.0, 49, dtype=torch.float64).view(6, 8)


def views(x: Any) -> list[Any]:
    """Non-contiguous strides; in the last two several elements share one place."""
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
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # PyTorch's own call
def test_under_compile_a_strided_input_is_taken_as_it_lies_too() -> None:
    run, x = TORCH.operator(Lies()), table()
    compiled = torch.compile(lambda x: run(x.t() + 1)[0] + run(x[::2, 1::3].t())[0].sum(), fullgraph=True)
    leaf = x.clone().requires_grad_()
    y = compiled(leaf)
    picked = x[::2, 1::3]
    assert torch.equal(y, (x.t() + 1) ** 2 + (picked**2).sum())  # all integers
    y.sum().backward()
    wanted = 2 * (x + 1)
    wanted[::2, 1::3] += 2 * 48 * picked  # for each of the 48 elements of y
    assert torch.equal(leaf.grad, wanted)
    _, place = torch.compile(lambda x: run(x.t()), fullgraph=True)(x)
    assert place.tolist() == [x.data_ptr(), *x.t().stride()]


def test_a_call_converts_nothing_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    x, leaf = torch.ones(1), torch.ones(1, requires_grad=True)
    calls = [TORCH.operator(CppPow(3)), TORCH.operator(PyPow(3))]
    expected = [[call(x).clone(), call(leaf).detach().clone()] for call in calls]
    for name in ("numpy", "__array__", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, lambda self, *given: pytest.fail("a tensor was converted to NumPy"))
    found = [[call(x).clone(), call(leaf).detach().clone()] for call in calls]
    for one, other in zip(expected, found, strict=True):
        assert all(torch.equal(mine, yours) for mine, yours in zip(one, other, strict=True))


def test_tensors_without_memory_are_refused() -> None:
    run = TORCH.operator(CppPow())
    with pytest.raises(Unsupported, match=r"got tensors on meta; allowed: cpu, and cuda"):
        run(torch.ones(2, device="meta"))
    run(torch.eye(2))
    with pytest.raises(ShapeError, match=r"an input has no storage"):
        run(torch.eye(2).to_sparse())
    with pytest.raises(Unsupported, match=r"CppPow in C\+\+ does not run inside the transformations of torch\.func"):
        torch.func.grad(lambda x: run(x).sum())(torch.eye(2))


def test_an_element_type_that_torch_computes_nothing_in_is_refused() -> None:
    wide = ir.Value(name="wide", shape=ir.Shape((2,)), type=ir.TensorType(ir.DataType.UINT64))
    answer = TORCH.supports(ir.node("PyPow", [wide], domain=DOMAIN))
    assert "the element type UINT64 of 'wide'" in answer.reason


def test_a_network_is_refused_on_a_device_that_an_operator_has_no_source_for() -> None:
    # The refusal comes before anything is moved to the device, which need not exist.
    with pytest.raises(Unsupported, match=r"CppPow_1 \(CppPow\): CppPow has no cuda, so it does not run on cuda"):
        PyTorchExecutor(powers("CppPow"), TORCH, device=d5.GPUDevice())


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
        framework.executor(powers("CppPow"), device="cuda")
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
