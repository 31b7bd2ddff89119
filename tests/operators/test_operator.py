"""A deep5 operator on each back-end: written once, differentiated by torch or by its own backward."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deep5 as d5
from deep5.core.errors import ShapeError
from deep5.operators.registry import forget_operator

TORCH, NUMPY = d5.framework("pytorch"), d5.framework("reference")
RNG = np.random.default_rng(3)


class Square(d5.Operator):
    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] * inputs[0]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (2 * inputs[0] * output_grads[0],)


class Polar(d5.Operator):
    """(x, y) -> (radius, angle): two inputs, two outputs, and a backward that reads the outputs."""

    asked: tuple[bool, ...] = ()

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs

    def forward(self, *inputs: Any) -> Any:
        xp, (x, y) = d5.array_namespace(*inputs), inputs
        return xp.sqrt(x * x + y * y), xp.atan2(y, x)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        self.asked = tuple(needs)
        (x, y), (radius, _), (by_radius, by_angle) = inputs, outputs, output_grads
        by_x = by_radius * x / radius - by_angle * y / (radius * radius)
        by_y = by_radius * y / radius + by_angle * x / (radius * radius)
        return by_x if needs[0] else None, by_y if needs[1] else None


class Scale(d5.Operator):
    """x * w, with an integer input that has no gradient."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs[:1]

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] * inputs[1] + inputs[2]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        assert not needs[2]
        return output_grads[0] * inputs[1], output_grads[0] * inputs[0], None


def values(count: int, *shape: int) -> list[np.ndarray]:
    return [RNG.standard_normal(shape) + 2 for _ in range(count)]


CASES = [(Square(), values(1, 3, 2)), (Polar(), values(2, 4)), (Scale(), [*values(2, 5), np.arange(5)])]


@pytest.mark.parametrize(("operator", "inputs"), CASES, ids=["one", "two", "integer"])
def test_torch_finds_the_gradient_right(operator: d5.Operator, inputs: list[np.ndarray]) -> None:
    native = TORCH.operator(operator)
    tensors = [torch.from_numpy(x.copy()) for x in inputs]
    for tensor in tensors:
        tensor.requires_grad_(tensor.is_floating_point())
    assert torch.autograd.gradcheck(native, tuple(tensors))


@pytest.mark.parametrize(("operator", "inputs"), CASES, ids=["one", "two", "integer"])
def test_the_reference_gives_the_same_values_and_gradients(operator: d5.Operator, inputs: list[np.ndarray]) -> None:
    def several(made: Any) -> tuple[Any, ...]:
        return made if isinstance(made, tuple) else (made,)

    outputs = several(NUMPY.operator(operator)(*inputs))
    assert all(isinstance(value, np.ndarray) for value in outputs)
    tensors = [torch.from_numpy(x.copy()).requires_grad_(x.dtype.kind == "f") for x in inputs]
    other = several(TORCH.operator(operator)(*tensors))
    grads = [RNG.standard_normal(value.shape) for value in outputs]
    needs = [tensor.requires_grad for tensor in tensors]
    ours = operator.backward(grads, inputs, outputs, needs)
    torch.autograd.backward(other, [torch.from_numpy(grad) for grad in grads])
    for value, same in zip(outputs, other, strict=True):
        # A handful of float64 operations.
        np.testing.assert_allclose(value, same.detach(), rtol=1e-14)
    for gradient, tensor, needed in zip(ours, tensors, needs, strict=True):
        assert (gradient is not None) == needed
        if needed:
            np.testing.assert_allclose(gradient, tensor.grad, rtol=1e-13)
    # The gradient by differences, in NumPy only: step 1e-6, central, in float64.
    for index in [index for index, needed in enumerate(needs) if needed]:
        direction = RNG.standard_normal(inputs[index].shape)
        ends = []
        for sign in (1, -1):
            moved = [x + sign * 1e-6 * direction if i == index else x for i, x in enumerate(inputs)]
            made = several(NUMPY.operator(operator)(*moved))
            ends.append(sum(float((g * value).sum()) for g, value in zip(grads, made, strict=True)))
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(float((ours[index] * direction).sum()), rel=1e-6, abs=1e-8)


def test_a_wrong_gradient_is_caught() -> None:
    class Wrong(Square):
        def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
            return (inputs[0] * output_grads[0],)

    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(TORCH.operator(Wrong()), (x,))


def test_an_operator_without_its_methods_is_refused() -> None:
    with pytest.raises(TypeError, match="abstract"):
        d5.Operator()  # type: ignore[abstract]


def test_the_tutorials_operator_is_ten_lines_and_right() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how_to" / "operators.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    tree = ast.parse(code)
    (operator,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert operator.name == "IPow"
    assert ast.get_docstring(operator)
    operator.body = operator.body[1:]
    # Without its docstring, comments and empty lines; with the decorator that registers it.
    assert len(ast.unparse(operator).replace("\n\n", "\n").splitlines()) == 10
    wanted = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef))]
    names: dict[str, Any] = {"__name__": "the_tutorial"}
    exec(compile(ast.Module(wanted, []), "operators.md", "exec"), names)  # noqa: S102 - our own page
    x = RNG.standard_normal((3, 4)) + 2
    # Also under array_api_strict, because of `strict`.
    try:
        report = d5.check_forward(names["IPow"](3), [x], reference=lambda x: x * x * x, strict=True)
        assert "array_api_strict" in str(report)
        d5.check_gradient(names["IPow"](3), [x], strict=True)
    finally:
        forget_operator("IPow", domain="org.example")


def test_a_masked_array_is_refused_after_a_plain_one_of_its_shape() -> None:
    """The lookup for the plain array does not apply to it: its mask would be lost silently."""
    run = d5.framework("reference").operator(Square())
    x = np.ones(3)
    np.testing.assert_array_equal(run(x), x)
    with pytest.raises(ShapeError, match=r"Square: got MaskedArray as an input; allowed: .*array\.filled"):
        run(np.ma.masked_array(x, mask=[True, False, False]))
