"""`CppOperator`: an operator written in C++ against deep5's header, compiled on first use."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from deep5.core.errors import OperatorError, ShapeError, Unsupported
from deep5.core.memo import remember
from deep5.core.operator import Operator
from deep5.core.tensors import Array, TensorSpec
from deep5.operators.arguments import check_output_grads, wanted_gradients
from deep5.operators.backward import Backward
from deep5.operators.contract import is_floating, name_of, spec_of
from deep5.operators.cpp_attributes import as_attribute
from deep5.operators.cpp_library import ELEMENTS, Argument, Library, Made, Source, source_path
from deep5.operators.kernel import Kernel
from deep5.operators.plan import CODES, Plan, check_arrays, remembered

__all__ = ["CppOperator"]

_LOCK = threading.RLock()


class CppOperator(Operator):
    """An operator whose arithmetic is a C++ class template; see `deep5/operator.h`.

    A subclass sets the source and defines the outputs (`specs`). The template is instantiated for the element type of
    the first floating-point input, or of the first input if there is none. Each instance is compiled on first use, with
    `-O3 -march=native` and OpenMP, and kept in the cache folder.

    Args:
        attributes: The arguments of the C++ constructor, in order: integers (`int64_t`), numbers (`double`), booleans
            (`bool`), strings (`std::string`), and lists of integers or of numbers (`std::vector`). Values out of range
            of the C++ type are rejected.

    Attributes:
        source: The C++ file, relative to the file of the subclass, or the source itself (a string with a `{`, a `;` or
            several lines).
        cuda: The same in CUDA, for GPUs.
        template: Name of the C++ class template; the subclass's name if empty.

    >>> class Scale(CppOperator):
    ...     source = '''
    ...     template <typename T>
    ...     struct Scale : deep5::Operator {
    ...       T factor;
    ...       explicit Scale(double factor) : factor(factor) {}
    ...       void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
    ...         for (int64_t i = 0; i < x.size(); ++i) y[i] = factor * x[i];
    ...       }
    ...     };'''
    ...     def __init__(self, factor): super().__init__(factor=float(factor))
    ...     def specs(self, x): return (x,)
    >>> Scale(3).forward(np.array([1.0, 2.0]))
    array([3., 6.])
    """

    source: ClassVar[str | Path] = ""
    cuda: ClassVar[str | Path] = ""
    template: ClassVar[str] = ""

    def __init__(self, **attributes: Any) -> None:
        self.attributes = {name: as_attribute(type(self).__name__, name, value) for name, value in attributes.items()}
        # By element type and device.
        self._libraries: dict[tuple[str, str], Library] = {}
        self._made: dict[tuple[str, str], Made] = {}
        self._kernels: dict[Any, Kernel] = {}
        # Plans of the forward pass on NumPy arrays, by their kinds, shapes and element types: one lookup per call.
        self._plans: dict[Any, Plan] = {}
        # The same for the backward pass: the plan, None if no gradient is needed, and the outputs whose gradients it
        # takes.
        self._backward_plans: dict[Any, tuple[Plan | None, list[int]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """The state without compiled objects, which another process finds in the cache."""
        return {**vars(self), "_libraries": {}, "_made": {}, "_kernels": {}, "_plans": {}, "_backward_plans": {}}

    def forward(self, *inputs: Array) -> Any:
        """The outputs for NumPy arrays.

        Args:
            inputs: NumPy arrays.

        Raises:
            ShapeError: The operator does not accept the inputs.
            OperatorError: It does not compile, or failed.
        """
        try:
            plan = self._plans[tuple([(type(value), value.shape, value.dtype) for value in inputs])]
        except (KeyError, AttributeError, TypeError):
            plan = remembered(self._plans, name_of(self), inputs, self._plan)
        outputs = plan.on_arrays(inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def backward(
        self,
        output_grads: Sequence[Array | None],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        needs: Sequence[bool],
    ) -> Sequence[Array | None]:
        """The gradients for NumPy arrays.

        Args:
            output_grads: As for `Operator.backward`.
            inputs: As for `Operator.backward`.
            outputs: As for `Operator.backward`.
            needs: As for `Operator.backward`.

        Raises:
            ShapeError: The arrays do not match those of `forward`, or `needs`.
            OperatorError: It does not compile, has no `backward`, or failed.
        """
        given = (*output_grads, *inputs, *outputs)
        try:
            kinds = tuple([None if value is None else (type(value), value.shape, value.dtype) for value in given])
            plan, floating = self._backward_plans[len(inputs), len(outputs), tuple(needs), kinds]
        except (KeyError, AttributeError, TypeError):
            plan, floating = self._plan_backward(output_grads, inputs, outputs, needs)
        if plan is None:
            return (None,) * len(inputs)
        found = iter(plan.on_arrays((*[output_grads[number] for number in floating], *inputs, *outputs)))
        return tuple([next(found) if needed else None for needed in needs])

    def kernel(self, dtypes: Sequence[str], *, needs: Sequence[bool] | None = None, device: str = "cpu") -> Kernel:
        """The kernel that frameworks call, compiled if necessary.

        Args:
            dtypes: NumPy names of the element types of the operator's inputs.
            needs: Which inputs need a gradient, for the backward pass; None: the forward pass.
            device: `"cpu"` or `"cuda"`.

        Returns:
            The kernel. A backward one has the inputs and outputs of `Backward`.

        Raises:
            OperatorError: It does not compile, has no `backward`, or its functions do not match `specs`.
            Unsupported: There is no source for the device.
        """
        key = (tuple(dtypes), None if needs is None else tuple(needs), device)
        kernel = self._kernels.get(key)
        if kernel is None:
            with _LOCK:  # concurrent threads share one C++ object
                kernel = self._kernels.get(key)
                if kernel is None:
                    kernel = self._kernels[key] = self._bind(*key)
        return kernel

    @property
    def differentiable(self) -> bool:
        """Whether the C++ class has a `backward`; compiles it if no element type is compiled yet.

        Raises:
            OperatorError: It does not compile.
            Unsupported: There is no source.
        """
        if not self._libraries:
            # Create no object: its constructor may crash.
            device = "cpu" if self.source else "cuda"
            with _LOCK:
                try:
                    self._library("float32", device)
                except OperatorError:  # a class that supports only another element type
                    self._library("float64", device)
        return list(self._libraries.values())[0].has_backward  # noqa: RUF015 - atomic: threads may add to it

    def report(self) -> dict[str, float]:
        """Totals of the counters that the C++ code reported since the last call, by name."""
        total: dict[str, float] = {}
        for made in self._made.values():
            for name, value in made.report().items():
                total[name] = total.get(name, 0.0) + value
        return total

    def text(self, device: str = "cpu") -> str:
        """The source, as a string.

        Args:
            device: `"cpu"` or `"cuda"`.

        Raises:
            Unsupported: There is none for the device.
            OperatorError: Its file cannot be read.
        """
        path = self.source_path(device)
        if path is None:
            return str(self._source(device))
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OperatorError(
                f"{name_of(self)}: the C++ source {path} cannot be read ({error}); allowed: a file beside the class, "
                "or the source itself, with its { and ;"
            ) from error

    def source_path(self, device: str = "cpu") -> Path | None:
        """The file of the source; None if the class contains the source itself.

        Args:
            device: `"cpu"` or `"cuda"`.

        Raises:
            Unsupported: There is none for the device.
        """
        return source_path(type(self), self._source(device))

    def _source(self, device: str) -> str | Path:
        source = self.source if device == "cpu" else self.cuda
        if not source:
            what = "source" if device == "cpu" else "cuda"
            raise Unsupported(
                f"{name_of(self)} has no {what}, so it does not run on {device}; allowed: a file or a string"
            )
        return source

    def _plan(self, inputs: Sequence[TensorSpec]) -> Plan:
        return self.kernel(tuple(spec.dtype for spec in inputs)).plan(inputs)

    def _plan_backward(
        self,
        output_grads: Sequence[Array | None],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        needs: Sequence[bool],
    ) -> tuple[Plan | None, list[int]]:
        name = name_of(self)
        grads, given, made = map(_arrays, (output_grads, inputs, outputs))
        check_arrays(f"{name}.backward", [*(value for value in grads if value is not None), *given, *made])
        wanted = wanted_gradients(name, given, needs)
        taken = check_output_grads(name, made, grads, np.ndarray)
        floating = [number for number, value in enumerate(taken) if value is not None]
        plan = None
        if any(wanted):
            kernel = self.kernel(tuple(str(value.dtype) for value in given), needs=wanted)
            plan = kernel.plan([spec_of(value) for value in (*(taken[number] for number in floating), *given, *made)])
        kinds = tuple(
            None if value is None else (type(value), value.shape, value.dtype)
            for value in (*output_grads, *inputs, *outputs)
        )
        return remember(self._backward_plans, (len(inputs), len(outputs), wanted, kinds), (plan, floating))

    def _library(self, element: str, device: str) -> Library:
        if (element, device) not in self._libraries:
            source = Source(
                name=name_of(self),
                template=self.template or type(self).__name__,
                text=self.text(device),
                path=self.source_path(device),
                attributes=tuple(self.attributes),
            )
            self._libraries[element, device] = Library(source, element, device)
        return self._libraries[element, device]

    def _bind(self, dtypes: tuple[str, ...], needs: tuple[bool, ...] | None, device: str) -> Kernel:
        name = name_of(self)
        for dtype in dtypes:
            if dtype not in CODES:
                raise ShapeError(f"{name}: got an input of {dtype}; allowed: {', '.join(CODES)}")
        element = next((dtype for dtype in dtypes if is_floating(dtype)), dtypes[0] if dtypes else "float32")
        library = self._library(element, device)
        made = self._made.get((element, device)) or Made(library, self.attributes)
        self._made[element, device] = made
        forward = library.arguments("forward")
        inputs, outputs = [entry for entry in forward if entry.constant], [e for e in forward if not e.constant]
        if forward != [*inputs, *outputs] or not outputs:
            raise OperatorError(
                f"{name}: forward takes ({_signature(forward)}); allowed: inputs (Tensor<const T>), then at least one "
                "output (Tensor<T>)"
            )
        if tuple(entry.dtype for entry in inputs) != dtypes:
            raise ShapeError(
                f"{name}: got inputs of {', '.join(dtypes) or 'nothing'}; allowed, as its C++ forward takes them: "
                f"{', '.join(entry.dtype for entry in inputs)}"
            )
        if needs is None:
            return Kernel(
                self,
                library.functions,
                made,
                0,
                dtypes,
                [entry.dtype for entry in outputs],
                range(len(forward)),
                [entry.strided for entry in inputs],
            )
        floating = [is_floating(entry.dtype) for entry in outputs]
        arguments = library.arguments("backward")
        if not arguments:
            raise OperatorError(f"{name} has no backward in C++; remedy: write one, or request no gradient")
        grads = [entry.dtype for entry in outputs if is_floating(entry.dtype)]
        given = [*grads, *dtypes, *(entry.dtype for entry in outputs)]
        wanted = [dtype for dtype in dtypes if is_floating(dtype)]
        expected = [(dtype, True) for dtype in given] + [(dtype, False) for dtype in wanted]
        if [(entry.dtype, entry.constant) for entry in arguments] != expected:
            raise OperatorError(
                f"{name}: backward takes ({_signature(arguments)}); allowed: gradients by the floating-point outputs, "
                f"inputs, outputs, then the gradients to write, ({_listed(expected)})"
            )
        places, at = list(range(len(given))), len(given)
        for dtype, needed in zip(dtypes, needs, strict=True):
            if is_floating(dtype):
                places.append(at if needed else -1)
                at += int(needed)
        return Kernel(
            Backward(self, needs, floating),
            library.functions,
            made,
            1,
            given,
            [dtype for dtype, needed in zip(dtypes, needs, strict=True) if needed],
            places,
            [entry.strided for entry in arguments[: len(given)]],
        )


def _arrays(values: Sequence[Any]) -> list[Any]:
    """Convert NumPy scalars to rank-0 arrays."""
    return [np.asarray(value) if isinstance(value, np.generic) else value for value in values]


def _signature(arguments: Sequence[Argument]) -> str:
    return _listed([(entry.dtype, entry.constant) for entry in arguments])


def _listed(arguments: Sequence[tuple[str, bool]]) -> str:
    return ", ".join(f"{'const ' if constant else ''}{ELEMENTS[dtype]}" for dtype, constant in arguments)
