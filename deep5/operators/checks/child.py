"""The child process: runs an operator that may crash on every kind of input used by the checks.

`survival` starts it, and documents what is sent and why.
"""

from __future__ import annotations

import copy
import importlib
import json
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from deep5.core.arguments import THREADS
from deep5.core.child_main import Report
from deep5.core.errors import Deep5Error
from deep5.core.operator import Operator
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.operators.checks.conduct import some_needs
from deep5.operators.checks.inputs import LARGE, LARGER, floating, variations
from deep5.operators.checks.memory import Guarded, guarded_memory
from deep5.operators.checks.threads import COUNTS
from deep5.operators.contract import is_floating, several
from deep5.operators.cpp import CppOperator
from deep5.operators.cpp_library import BOUNDS

__all__ = ["OUTSIDE", "WRONG", "main"]

OUTSIDE = 87
"""Exit status of a child with index checks at an index out of bounds; unused by shells and signals."""

WRONG = "wrong: "
"""Prefix of the child's messages about faults."""


def main(report: Report) -> None:
    """Entry point of the child: read the data, run the operator, and report the current action."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    data = sys.stdin.buffer.read()
    size = int.from_bytes(data[:8], "little")
    head, place = json.loads(data[8 : 8 + size]), 8 + size
    THREADS[0] = head["threads"]
    inputs = []
    for shape, dtype in head["inputs"]:
        kind = numpy_dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        inputs.append(np.frombuffer(data, kind, count, place).reshape(shape).copy())
        place += count * kind.itemsize
    runs = list(variations(inputs, head["dtypes"]))
    if "maker" in head:
        operator: Any = _made_again(head)
        for what, values in runs:
            if LARGE in what:  # most of what Python computes too slowly there, NumPy computes in its own loop
                continue
            # The checks report the operator's own errors.
            with suppress(Exception, SystemExit):
                _call(operator, what, values, report)
    else:
        # First with index checks, then without, as in normal use.
        for BOUNDS[0] in (OUTSIDE, 0):
            operator, refused = _operator(head), set[tuple[str, ...]]()
            for (what, expected), (_, values) in zip(head["runs"], runs, strict=True):
                if expected is not None and _compiles(operator, values, refused, report):
                    operator.answer = tuple(TensorSpec(shape=tuple(shape), dtype=dtype) for shape, dtype in expected)
                    with suppress(Deep5Error):
                        _call(operator, what, values, report)
        for number, ((what, expected), (_, values)) in enumerate(zip(head["runs"], runs, strict=True)):
            if expected is not None and (not number or what == LARGER) and _compiles(operator, values, refused, report):
                operator.answer = tuple(TensorSpec(shape=tuple(shape), dtype=dtype) for shape, dtype in expected)
                for THREADS[0] in COUNTS:
                    with suppress(Deep5Error):
                        _call(operator, f"{what}, with {THREADS[0]} threads", values, report)
    report("the end")


def _compiles(
    operator: Any, values: Sequence[np.ndarray], refused: set[tuple[str, ...]], report: Callable[[str], None]
) -> bool:
    dtypes = tuple(str(value.dtype) for value in values)
    if dtypes in refused:
        return False
    report(f"compiling for {', '.join(dtypes)}")
    try:
        operator.kernel(dtypes)
    except Deep5Error:
        refused.add(dtypes)  # otherwise it would be compiled and rejected again
        return False
    return True


def _call(operator: Any, what: str, values: Sequence[np.ndarray], report: Callable[[str], None]) -> None:
    """Run forward and backward; a C++ operator gets guarded memory."""
    with guarded_memory(pages=True) as memory:
        if isinstance(operator, CppOperator):
            values = [memory.copy(value) for value in values]
        outputs = _seen(memory, f"forward on {what}", lambda: several(operator.forward(*values)), report)
        needs = floating(values)
        if not getattr(operator, "differentiable", True) or not any(needs):
            return
        grads = [np.ones_like(value) if is_floating(str(value.dtype)) else None for value in outputs]
        if isinstance(operator, CppOperator):
            grads = [None if grad is None else memory.copy(grad) for grad in grads]
        # As in frameworks that create another object: state kept by forward is not available.
        other = copy.copy(operator) if isinstance(operator, CppOperator) else operator
        for name, some in (("", needs), *some_needs(needs)):
            # A gradient that is not needed has no memory: this reveals operators that write to it anyway.
            reported = name and f", with a gradient by {name}"
            _seen(
                memory,
                f"backward on {what}{reported}",
                lambda some=some: other.backward(grads, values, outputs, some),  # type: ignore[misc]
                report,
            )


def _seen(memory: Guarded, doing: str, call: Callable[[], Any], report: Callable[[str], None]) -> Any:
    """The result of a call; reports writes out of bounds and elements that were not written."""
    report(doing)
    made = call()
    if reported := memory.wrong():
        report(f"{WRONG}{reported} in {doing}")
    left = memory.untouched(made)
    if any(part is not None and part.any() for part in left):
        # Elements may equal the fill pattern by chance: repeat in memory with another pattern.
        with guarded_memory(pages=True) as other:
            again = other.untouched(call())
        for number, (first, second) in enumerate(zip(left, again, strict=True)):
            if first is not None and second is not None and (count := int(np.count_nonzero(first & second))):
                what = "gradient by input" if doing.startswith("backward") else "output"
                report(
                    f"{WRONG}leaves {count} of {first.size} elements of {what} {number} unwritten in "
                    f"{doing}; allowed: all of them written, and not added to; remedy: look at the ends of loops, and "
                    "at what each thread takes"
                )
    return made


def _made_again(head: Mapping[str, Any]) -> Operator:
    module, _, function = head["maker"].partition(":")
    made: Operator = getattr(importlib.import_module(module), function)(*head["arguments"])
    return made


def _operator(head: Mapping[str, Any]) -> Any:
    class Sent(CppOperator):
        source, template, title = head["source"], head["template"], head["name"]
        answer: tuple[TensorSpec, ...] = ()

        def specs(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
            return self.answer

    return Sent(**head["attributes"])
