"""`PyTorchOperatorExecutor`: one operator on PyTorch, eager or compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from typing_extensions import override

from deep5.core.errors import Deep5Error, OperatorError, ShapeError, Unsupported
from deep5.core.executors import OperatorExecutor
from deep5.core.memo import remember
from deep5.core.operator import Operator
from deep5.core.tensors import Array, Device, is_bfloat16
from deep5.frameworks.pytorch.custom import on_tensors
from deep5.frameworks.pytorch.numerics import deterministic, tf32
from deep5.frameworks.pytorch.operator_check import check_operator
from deep5.frameworks.pytorch.operator_onnx import onnx_program
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.arguments import check_native, check_output_grads, wanted_gradients
from deep5.operators.contract import name_of

if TYPE_CHECKING:
    from deep5.core.framework import Framework
    from deep5.frameworks.pytorch.compiled import Compiler

__all__ = ["PyTorchOperatorExecutor"]

# Compiled functions hold memory, so the cache is smaller than for cheap entries.
_PROGRAMS = 64

Run = Callable[..., tuple[Any, ...]]


class PyTorchOperatorExecutor(OperatorExecutor):
    """An operator on PyTorch; made by `PyTorch.operator_executor`. Implements `OperatorExecutor`.

    Args:
        operator: Any operator that torch runs.
        framework: The back-end.
        device: Where it runs.
        compiler: Compiles it, separately for each combination of shapes; None: it runs eagerly.

    Attributes:
        operator: As given.
        device: As given.

    Raises:
        Unsupported: It belongs to another framework, or has no source for the device.
    """

    def __init__(
        self, operator: Operator, framework: Framework, *, device: Device, compiler: Compiler | None = None
    ) -> None:
        self.operator, self.device = operator, device
        self._framework, self._compiler, self._place = framework, compiler, torch.device(str(device))
        check_operator(operator, self._place.type)
        self._operators = functools.partial(on_tensors, framework=framework)
        self._plain = None if isinstance(operator, ONNXOperator) else self._operators(operator)
        self._made: dict[Any, Run] = {}

    def arrays(self, *values: Array) -> tuple[Array, ...]:
        """Tensors on the device; see `OperatorExecutor.arrays`."""
        return tuple(_tensor(self.operator, number, value).to(self._place) for number, value in enumerate(values))

    @override
    def inference(self, *inputs: Array) -> tuple[Array, ...]:
        with torch.no_grad():
            try:
                return self._run(inputs, None)(*inputs)
            except Deep5Error:
                raise
            except (IndexError, RuntimeError, TypeError, ValueError) as error:
                raise self._failed(error) from error

    @override
    def inference_and_backprop(
        self, inputs: Sequence[Array], output_grads: Sequence[Array], *, needs: Sequence[bool] | None = None
    ) -> tuple[tuple[Array, ...], tuple[Array | None, ...]]:
        wanted = self._wanted(inputs, needs)
        leaves = [
            value.detach().requires_grad_() if want else value for value, want in zip(inputs, wanted, strict=True)
        ]
        try:
            outputs = self._run(inputs, wanted)(*leaves)
            given = check_output_grads(name_of(self.operator), outputs, output_grads, torch.Tensor)
            roots = [(out, grad) for out, grad in zip(outputs, given, strict=True) if out.requires_grad]
            if not roots and any(wanted):
                raise Unsupported(
                    f"{name_of(self.operator)} has no gradient on torch: none of its outputs depends on these inputs "
                    "in a way that torch can differentiate"
                )
            # An input that the outputs do not depend on has a zero gradient.
            found = iter(
                torch.autograd.grad(
                    [out for out, _ in roots],
                    [leaf for leaf, want in zip(leaves, wanted, strict=True) if want],
                    [grad for _, grad in roots],
                    allow_unused=True,
                    materialize_grads=True,
                )
                if any(wanted)
                else ()
            )
        except Deep5Error:
            raise
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise self._failed(error) from error
        return tuple(out.detach() for out in outputs), tuple(next(found) if want else None for want in wanted)

    def synchronize(self) -> None:
        """Wait for the device; does nothing on the host."""
        if self._place.type == "cuda":
            torch.cuda.synchronize(self._place)

    @override
    def settings(self) -> dict[str, Any]:
        return {
            "framework": "pytorch",
            "version": torch.__version__,
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "tf32": self._place.type == "cuda" and tf32(),
            "deterministic": self._place.type == "cpu" or deterministic(),
        }

    def _run(self, inputs: Sequence[Any], wanted: tuple[bool, ...] | None) -> Run:
        """The function for inputs like these; for an operator that is not compiled, usually the same for all."""
        if self._compiler is None and self._plain is not None:
            return self._plain
        try:
            return self._made[key := (tuple([(value.shape, value.dtype) for value in inputs]), wanted)]
        except KeyError:
            pass
        except AttributeError:
            self._wanted(inputs, None)  # rejects arguments that are not tensors
            raise
        run = self._plain or onnx_program(self.operator, self._framework, self._operators, inputs)  # type: ignore[arg-type]
        if self._compiler is not None:
            run = self._compiler.of_operator(_in_python(run))
        return remember(self._made, key, run, room=_PROGRAMS)

    def _wanted(self, inputs: Sequence[Any], needs: Sequence[bool] | None) -> tuple[bool, ...]:
        name = name_of(self.operator)
        check_native(name, "input", inputs, torch.Tensor, "a torch.Tensor")
        return wanted_gradients(name, inputs, needs)

    def _failed(self, error: Exception) -> OperatorError:
        reported = str(error).strip().splitlines() or [""]
        # The first line is followed by the function's signatures.
        said = " ".join(line.strip() for line in reported[:3]) if reported[0].endswith(":") else reported[0]
        return OperatorError(f"{name_of(self.operator)} failed on torch: {type(error).__name__}: {said}")


def _in_python(run: Run) -> Run:
    """Wrap any callable in a Python function, which torch can compile."""

    def outputs_of(*inputs: Any) -> tuple[Any, ...]:
        return run(*inputs)

    return outputs_of


def _tensor(operator: Operator, number: int, value: Any) -> torch.Tensor:
    """A tensor from a tensor or a NumPy array; shares memory if torch can."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    try:
        array = np.asarray(value)
        if is_bfloat16(array):  # torch does not accept it from NumPy
            return torch.from_numpy(np.array(array.view(np.uint16), order="C")).view(torch.bfloat16)
        if array.flags.carray and array.dtype.isnative:
            return torch.from_numpy(array)
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(
            f"{name_of(operator)}: got {type(value).__name__} as value {number}, which torch cannot take ({error}); "
            "allowed: arrays of numbers"
        ) from error
