"""`Subject`: an operator run by one framework, with NumPy arrays as inputs and outputs."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error, NetworkError, OperatorError, Unsupported, UsageError, brief
from deep5.core.executors import OperatorExecutor
from deep5.core.operator import Operator
from deep5.core.plugins import framework as framework_named
from deep5.core.tensors import CPUDevice, TensorSpec, numpy_dtype, to_numpy
from deep5.operators.checks.inputs import floating
from deep5.operators.checks.memory import guarded_memory
from deep5.operators.checks.repeats import Repeats
from deep5.operators.checks.state import StateWatch
from deep5.operators.contract import (
    Expectations,
    check_gradients,
    check_outputs,
    is_floating,
    name_of,
    several,
    spec_of,
)
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator

__all__ = ["Arrays", "Subject", "breaks", "refuses", "refuses_size", "refuses_type", "specs"]

Arrays = tuple[np.ndarray, ...]


class _Direct:
    """The operator itself, called directly with NumPy arrays: an `OperatorExecutor` without a framework."""

    def __init__(self, operator: Operator) -> None:
        self.operator, self.device = operator, CPUDevice()
        self._expected = Expectations(operator)
        self.watches = False
        self.repeats = Repeats()
        self.state = StateWatch()

    def arrays(self, *values: Any) -> tuple[Any, ...]:
        return values

    def inference(self, *inputs: Any) -> tuple[Any, ...]:
        expected = self._expected(inputs)
        key = self.repeats.key("forward", inputs)
        with self._unchanged("forward", inputs), self.state.watched("forward", inputs):
            outputs = several(self._watched("forward", lambda: self.operator.forward(*inputs)))
        check_outputs(self.operator, outputs, expected)
        self.repeats.see("forward", key, outputs)
        self.repeats.owned("forward", outputs, inputs)
        return outputs

    def inference_and_backprop(
        self, inputs: Sequence[Any], output_grads: Sequence[Any], *, needs: Sequence[bool] | None = None
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        outputs = self.inference(*inputs)
        return outputs, self.pull(inputs, outputs, output_grads, needs)

    def pull(
        self, inputs: Sequence[Any], outputs: Sequence[Any], grads: Sequence[Any], needs: Sequence[bool] | None
    ) -> tuple[Any, ...]:
        if needs is None:
            needs = tuple(is_floating(str(value.dtype)) for value in inputs)
        key = self.repeats.key("backward", inputs, outputs, grads, needs)
        arguments = (*inputs, *(grad for grad in grads if grad is not None))
        with self._unchanged("backward", arguments), self.state.watched("backward", arguments):
            made = self._watched("backward", lambda: self.operator.backward(grads, inputs, outputs, needs))
        found = check_gradients(self.operator, made, inputs, needs)
        self.repeats.see("backward", key, found)
        self.repeats.owned("backward", found, (*inputs, *outputs), [grad for grad in grads if grad is not None])
        return found

    @contextmanager
    def _unchanged(self, what: str, given: Sequence[np.ndarray]) -> Iterator[None]:
        """Within, if it watches, no argument may change."""
        before = [np.ascontiguousarray(value).tobytes() for value in given] if self.watches else []
        yield
        for number, (value, kept) in enumerate(zip(given, before, strict=False)):
            if np.ascontiguousarray(value).tobytes() != kept:
                raise OperatorError(
                    f"{name_of(self.operator)}.{what} changed argument {number} in place; allowed: unchanged "
                    "arguments; remedy: a copy first"
                )

    def _watched(self, what: str, call: Callable[[], Any]) -> Any:
        """The result of a call; for C++ operators, checks the memory around the outputs."""
        if not isinstance(self.operator, CppOperator):
            return call()
        with guarded_memory() as memory:
            made = call()
            if reported := memory.wrong():
                raise OperatorError(f"{name_of(self.operator)}.{what} {reported}")
        return made

    def synchronize(self) -> None:
        pass

    def settings(self) -> dict[str, Any]:
        return {"framework": "NumPy", "version": np.__version__, "device": "cpu"}


class Subject:
    """An operator on a framework; NumPy's warnings are silenced while it runs, and its exceptions become deep5 errors.

    Args:
        operator: The operator.
        framework: The framework whose executor runs it. None or `"reference"`: the operator's own methods on NumPy
            arrays, if it has any.

    Raises:
        Unsupported: The framework does not run it.
        UsageError: The framework is not a name.
    """

    def __init__(self, operator: Operator, framework: str | None) -> None:
        self.operator, self.name = operator, name_of(operator)
        if framework is not None and (not isinstance(framework, str) or not framework):
            raise UsageError(f"got {brief(framework)} as a framework; allowed: a name, such as 'pytorch', or none")
        native = operator.framework if isinstance(operator, NativeOperator) else None
        if native is not None and framework is None:
            framework = native
        # Operators of the ONNX standard have no Python code.
        self.direct = framework in (None, "reference") and native is None and not hasattr(operator, "op_type")
        self.framework = "NumPy" if self.direct else framework or "reference"
        made: OperatorExecutor = (
            _Direct(operator) if self.direct else framework_named(self.framework).operator_executor(operator)
        )
        self.executor = made

    def watch(self) -> None:
        """From now on, an operator whose own methods run must leave the arguments of every call unchanged.

        Called once the checks have passed that report a change as such.
        """
        if isinstance(self.executor, _Direct):
            self.executor.watches = True

    def differing(self) -> list[str]:
        """Calls so far whose result differed from that of an earlier call with the same arguments.

        Without a framework; otherwise none are known.
        """
        return self.executor.repeats.differing if isinstance(self.executor, _Direct) else []

    def sharing(self) -> list[str]:
        """Calls so far whose results were no new memory; as `differing`."""
        return self.executor.repeats.sharing if isinstance(self.executor, _Direct) else []

    def changing(self) -> list[str]:
        """What calls so far changed of the process's state; as `differing`."""
        return self.executor.state.changed if isinstance(self.executor, _Direct) else []

    def restore(self) -> None:
        """Undo what calls changed of the process's state."""
        if isinstance(self.executor, _Direct):
            self.executor.state.restore()

    def native(self, inputs: Sequence[np.ndarray]) -> tuple[Any, ...]:
        """Inputs as the framework's native arrays; the same arrays without a framework."""
        return tuple(self._guarded("arrays", inputs, lambda: self.executor.arrays(*inputs)))

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Native outputs for native inputs."""
        made: tuple[Any, ...] = self._guarded("forward", inputs, lambda: self.executor.inference(*inputs))
        for number, value in enumerate(made):
            if not hasattr(value, "shape") or not hasattr(value, "dtype"):
                raise OperatorError(
                    f"{self.name}.forward returned {brief(value)} as output {number}; allowed: an array, or a tuple of "
                    "arrays"
                )
        return made

    def run_back(
        self, inputs: Sequence[Any], grads: Sequence[Any], needs: Sequence[bool]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Native outputs and gradients for native inputs."""
        made: tuple[tuple[Any, ...], tuple[Any, ...]] = self._guarded(
            "backward", inputs, lambda: self.executor.inference_and_backprop(inputs, grads, needs=needs)
        )
        return made

    def forward(self, inputs: Sequence[np.ndarray]) -> Arrays:
        """Outputs for NumPy arrays.

        Raises:
            OperatorError: The operator raised, or broke its contract.
            ShapeError: It does not accept these inputs.
        """
        if self.direct:
            return self.run(inputs)
        return self.back(self.run(self.native(inputs)))

    def gradients(
        self, inputs: Sequence[np.ndarray], grads: Sequence[np.ndarray | None], needs: Sequence[bool]
    ) -> tuple[np.ndarray | None, ...]:
        """Gradients of NumPy inputs; raises as `forward`."""
        return self.pullback(inputs)(grads, needs)

    def pullback(self, inputs: Sequence[np.ndarray]) -> Callable[..., tuple[np.ndarray | None, ...]]:
        """Gradients at one point, as a function of the output gradients and of which inputs need one.

        Without a framework, forward runs once.
        """
        executor = self.executor
        if isinstance(executor, _Direct):
            outputs = self.run(inputs)
            return lambda grads, needs: self.pull(inputs, outputs, grads, needs)

        def run(grads: Sequence[np.ndarray | None], needs: Sequence[bool]) -> tuple[np.ndarray | None, ...]:
            made = iter(self.native([grad for grad in grads if grad is not None]))
            given = [None if grad is None else next(made) for grad in grads]
            _, found = self.run_back(self.native(inputs), given, needs)
            return tuple(None if value is None else _numpy(value) for value in found)

        return run

    def pull(
        self,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        grads: Sequence[np.ndarray | None],
        needs: Sequence[bool],
    ) -> tuple[np.ndarray | None, ...]:
        """Gradients for given outputs; only without a framework.

        Raises:
            Unsupported: A framework runs it.
        """
        executor = self.executor
        if not isinstance(executor, _Direct):
            raise Unsupported(f"{self.framework} takes no outputs of {self.name} from elsewhere")
        found: tuple[Any, ...] = self._guarded("backward", inputs, lambda: executor.pull(inputs, outputs, grads, needs))
        return found

    def back(self, values: Sequence[Any]) -> Arrays:
        """Native arrays as NumPy arrays; the same arrays without a framework."""
        return tuple(values) if self.direct else tuple(_numpy(value) for value in values)

    def _has_none(self, error: Exception) -> bool:
        """Whether the body of `backward` itself raised it; if raised by a function that it calls, it is an error."""
        if not isinstance(error, NotImplementedError):
            return False
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        return frames[-1].f_code is getattr(type(self.operator).backward, "__code__", None)

    def _guarded(self, what: str, inputs: Sequence[Any], call: Callable[[], Any]) -> Any:
        try:
            with np.errstate(all="ignore"):
                return call()
        except Deep5Error:
            raise
        except SystemExit as error:
            raise OperatorError(
                f"{self.name}.{what} called sys.exit, with the status {error.code}; allowed: an operator that returns, "
                "or raises; remedy: raise an exception"
            ) from error
        except Exception as error:
            if what == "backward" and self._has_none(error):
                raise Unsupported(f"{self.name}.backward is not implemented: {error}") from error
            given = ", ".join(str(spec_of(value)) for value in inputs)
            raise OperatorError(
                f"{self.name}.{what} raised {type(error).__name__} for the inputs {given}: {error}; remedy: "
                "raise d5.ShapeError(…) in specs if it does not accept these inputs"
            ) from error


def breaks(subject: Subject, error: Deep5Error) -> bool:
    """Whether an error means that the operator broke its contract: no check may take that for a refusal.

    Any other `OperatorError` passes on an exception, of the operator's code in Python or in C++, or of a library. For
    values, which `specs` does not see, an exception is the only way to refuse them.
    """
    if not isinstance(error, OperatorError):
        return False
    raised = error.__cause__ is not None and not isinstance(error.__cause__, SystemExit)
    return not (raised or str(error).startswith(f"{subject.name} failed"))


def refuses(subject: Subject, error: Deep5Error) -> bool:
    """Whether an error is a refusal: of shapes, by ONNX's rules, of what is not supported, or by a framework itself."""
    return isinstance(error, (NetworkError, Unsupported)) or (not subject.direct and error.__cause__ is not None)


def refuses_size(subject: Subject, error: Deep5Error, inputs: Sequence[np.ndarray]) -> bool:
    """Whether an error is a refusal of sizes or ranks that `specs` accepted: not an exception in the operator's own
    methods, unless it may be about integers, which may be indices.
    """
    if breaks(subject, error):
        return False
    return not all(floating(inputs)) or (refuses(subject, error) and not _within(subject, error.__cause__))


def _within(subject: Subject, error: BaseException | None) -> bool:
    """Whether an exception passed through the operator's own methods; a framework's function has none."""
    if isinstance(subject.operator, NativeOperator):
        return False
    methods = {getattr(getattr(type(subject.operator), name), "__code__", None) for name in ("forward", "backward")}
    while error is not None:
        if any(frame.f_code in methods for frame, _ in traceback.walk_tb(error.__traceback__)):
            return True
        error = error.__cause__
    return False


def refuses_type(subject: Subject, error: Deep5Error) -> bool:
    """Whether an error is a refusal of an element type, which also NumPy's functions do, by a TypeError, and class
    templates that do not compile for it.
    """
    return refuses(subject, error) or isinstance(error.__cause__, TypeError) or "refused the operator" in str(error)


def specs(arrays: Sequence[np.ndarray]) -> tuple[TensorSpec, ...]:
    """Specifications of arrays."""
    return tuple(spec_of(value) for value in arrays)


def _numpy(value: Any) -> np.ndarray:
    """A native array as a NumPy array that shares no memory with it."""
    dtype = spec_of(value).dtype
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about memory that NumPy must not write to
        if dtype == "bfloat16" and hasattr(value, "float"):
            # PyTorch cannot convert bfloat16 to NumPy; float32 represents every such number.
            return np.array(to_numpy(value.float())).astype(numpy_dtype(dtype))
        return np.array(to_numpy(value))
