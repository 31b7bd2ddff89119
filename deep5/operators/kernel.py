"""`Kernel`: a compiled operator in one direction, for inputs of fixed element types, on any host memory.

All frameworks call the same C structure (`deep5/kernel.h`).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from deep5.core.arguments import THREADS
from deep5.core.errors import OperatorError, ShapeError
from deep5.core.tensors import TensorSpec
from deep5.operators.contract import name_of, specs_of
from deep5.operators.plan import CODES, Plan, Tensor, remembered

if TYPE_CHECKING:
    from deep5.core.operator import Operator

__all__ = ["ASK", "Kernel"]

_MAX_RANK = 16

ASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Tensor), ctypes.POINTER(Tensor))


class Kernel:
    """An operator in one direction; created by `CppOperator.kernel`.

    Args:
        operator: Determines the shapes of the outputs: a `CppOperator`, or its `Backward`.
        library: The compiled library.
        handle: The C++ object.
        direction: 0 forward, 1 backward.
        dtypes: Element types of the inputs.
        arguments: For each argument of the C++ function the index of an input or, after the inputs, of an output; -1:
            none.
        strided: Which inputs may be strided.

    Attributes:
        pointer: Address of the `deep5_kernel`; valid during the lifetime of this object.
        inputs: Number of inputs.
        dtypes: Element types of the inputs, then of the outputs.
        strided: Which inputs may be strided.
    """

    def __init__(
        self,
        operator: Operator,
        library: Any,
        handle: Any,
        direction: int,
        dtypes: Sequence[str],
        made: Sequence[str],
        arguments: Sequence[int],
        strided: Sequence[bool],
    ) -> None:
        self._operator, self._library, self._handle = operator, library, handle
        self.name = name_of(operator)
        self.inputs, self.dtypes, self.strided = len(dtypes), (*dtypes, *made), tuple(strided)
        self._plans: dict[Any, Plan] = {}
        self._failure: Exception | None = None
        # A weak reference: the callback must keep neither the kernel nor the operator alive.
        own = weakref.ref(self)
        self._ask = ASK(lambda token, inputs, outputs: _answer(own(), inputs, outputs))
        codes = [CODES[dtype] for dtype in self.dtypes]
        self.pointer: int = library.deep5_bind(
            handle.address,
            direction,
            len(dtypes),
            len(made),
            (ctypes.c_int32 * len(codes))(*codes),
            (ctypes.c_int32 * max(1, len(dtypes)))(*map(int, strided)),
            len(arguments),
            (ctypes.c_int32 * max(1, len(arguments)))(*arguments),
            None,
            self._ask,
            THREADS.buffer_info()[0],
        )
        weakref.finalize(self, _unbind, library, self.pointer, handle)

    def __call__(self, *inputs: Any) -> list[Any]:
        """The outputs for NumPy arrays, as new arrays; raises as `plan` and `Plan.on_arrays`."""
        try:
            plan = self._plans[tuple([(type(value), value.shape, value.dtype) for value in inputs])]
        except (KeyError, AttributeError, TypeError):
            plan = remembered(self._plans, self.name, inputs, self.plan)
        return plan.on_arrays(inputs)

    def plan(self, inputs: Sequence[TensorSpec]) -> Plan:
        """A plan for inputs of these shapes.

        Raises:
            ShapeError: The operator does not accept the number of inputs, an element type, or the shapes.
            OperatorError: Its specs do not match the C++ class.
        """
        dtypes = tuple(spec.dtype for spec in inputs)
        if dtypes != self.dtypes[: self.inputs]:
            raise ShapeError(
                f"{self.name}: got inputs of {', '.join(dtypes) or 'nothing'}; allowed: "
                f"{', '.join(self.dtypes[: self.inputs])}"
            )
        outputs = self._said(inputs)
        for spec in inputs:
            if len(spec.shape) > _MAX_RANK:
                raise ShapeError(f"{self.name}: got rank {len(spec.shape)}; allowed: at most {_MAX_RANK}")
        return Plan(self, inputs, outputs)

    def fail(self) -> NoReturn:
        """Raise the error of this thread's last call.

        Raises:
            OperatorError: Always.
        """
        raise OperatorError(f"{self.name} failed: {self._library.deep5_error().decode(errors='replace')}")

    @property
    def failure(self) -> Exception | None:
        """The exception that `specs` raised when a framework requested the shapes of outputs; None without an error."""
        return self._failure

    def _said(self, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """The outputs by the operator's specs, compared with those of the C++ class."""
        outputs = specs_of(self._operator, inputs)
        if tuple(spec.dtype for spec in outputs) != self.dtypes[self.inputs :]:
            raise OperatorError(
                f"{self.name}: its specs says outputs of {', '.join(spec.dtype for spec in outputs)}, the C++ class "
                f"writes {', '.join(self.dtypes[self.inputs :])}"
            )
        for spec in outputs:
            if len(spec.shape) > _MAX_RANK:
                raise ShapeError(f"{self.name}: got rank {len(spec.shape)}; allowed: at most {_MAX_RANK}")
        return outputs

    def _shapes(self, inputs: Any, outputs: Any) -> None:
        """Callback for frameworks that request the shapes of outputs."""
        specs = [
            TensorSpec(shape=tuple(inputs[at].shape[axis] for axis in range(inputs[at].rank)), dtype=self.dtypes[at])
            for at in range(self.inputs)
        ]
        for at, spec in enumerate(self._said(specs)):
            outputs[at].rank = len(spec.shape)
            for axis, extent in enumerate(spec.shape):
                outputs[at].shape[axis] = extent


def _answer(kernel: Kernel | None, inputs: Any, outputs: Any) -> int:
    if kernel is None:
        return 1
    try:
        kernel._shapes(inputs, outputs)
    except Exception as error:  # a callback cannot raise; the framework's caller gets the error
        kernel._failure = error
        return 1
    kernel._failure = None
    return 0


def _unbind(library: Any, pointer: int, handle: Any) -> None:
    # The handle is an argument so that the C++ object outlives its kernels.
    library.deep5_unbind(pointer)
