"""An operator run in a process of its own before it runs in the user's: what crashes or never ends does it there.

What is sent is the inputs, and of one in C++ the source and the attributes, as texts and bytes: no class, so that one
typed into a notebook is taken too, and nothing is unpickled. One in Python is made again, by a function that is named.
The process is started anew and not forked: threads of OpenMP and of frameworks do not outlive a fork. What `specs` of
one in C++ says is found beforehand and sent along.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from deep5.arguments import THREADS
from deep5.errors import Deep5Error, OperatorError, ShapeError
from deep5.operators.checks.conduct import some_needs
from deep5.operators.checks.inputs import LARGER, floating, variations
from deep5.operators.checks.memory import Guarded, guarded_memory
from deep5.operators.checks.subject import specs
from deep5.operators.checks.threads import COUNTS, too_large
from deep5.operators.contract import is_floating, name_of, several, specs_of
from deep5.operators.cpp import CppOperator
from deep5.operators.cpp_library import BOUNDS
from deep5.operators.operator import Operator
from deep5.tensors import TensorSpec, numpy_dtype

__all__ = ["main", "survive", "survive_again"]

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from deep5.operators.checks.child import main; "
    "main(int(sys.argv[2]))"
)
# The compiler has a limit of its own, which is lower.
_COMPILE_S = 300.0
_SURVIVED: set[str] = set()
# How a child ends that looks at every index, at one outside of its tensor; no shell or signal has this status.
_OUTSIDE = 87
# What a child says before what it saw.
_WRONG = "wrong: "


def survive(operator: CppOperator, inputs: Sequence[np.ndarray], dtypes: Sequence[str], time_limit_s: float) -> None:
    """Run an operator in a child process on every kind of input that it is going to be checked with.

    What was run once, and did not crash, is not run again. Errors that are told in good order are left to the checks.

    Args:
        operator: The operator.
        inputs: Contiguous.
        dtypes: Element types that the floating inputs are tried in.
        time_limit_s: Seconds that one call may take, compiling excluded.

    Raises:
        OperatorError: It crashed, ended the process, or did not end in time; the message says where.
    """
    runs: list[list[Any]] = []
    for what, values in variations(inputs, dtypes):
        try:
            outputs = specs_of(operator, specs(values))
            if what == LARGER and too_large(outputs):
                raise ShapeError(f"{operator}: outputs beyond what is soon computed")
            runs.append([what, [[list(spec.shape), spec.dtype] for spec in outputs]])
        except Deep5Error:
            runs.append([what, None])
    path = operator.source_path()
    head: dict[str, Any] = {
        "name": name_of(operator),
        "source": str(path) if path else operator.source,
        "template": operator.template or type(operator).__name__,
        "attributes": operator.attributes,
        "runs": runs,
    }
    data = _packed(head, inputs, dtypes)
    # The text itself, and when the files beside it changed, which it may include.
    beside = [] if path is None else [(each.name, each.stat().st_mtime_ns) for each in sorted(path.parent.iterdir())]
    key = hashlib.sha256(operator.text().encode() + repr(beside).encode() + data).hexdigest()
    if key not in _SURVIVED:
        _run(head["name"], data, time_limit_s)
        _SURVIVED.add(key)


def survive_again(
    name: str,
    maker: str,
    arguments: Sequence[Any],
    inputs: Sequence[np.ndarray],
    dtypes: Sequence[str],
    time_limit_s: float,
) -> None:
    """The same of an operator in Python, which the child makes again.

    Args:
        name: What messages call it.
        maker: `MODULE:FUNCTION`, which gives the operator.
        arguments: What the function is called with, as JSON takes it.
        inputs: Contiguous.
        dtypes: Element types that the floating inputs are tried in.
        time_limit_s: Seconds that one call may take.

    Raises:
        OperatorError: As for `survive`.
    """
    _run(name, _packed({"maker": maker, "arguments": list(arguments)}, inputs, dtypes), time_limit_s)


def _packed(head: Mapping[str, Any], inputs: Sequence[np.ndarray], dtypes: Sequence[str]) -> bytes:
    """What `main` reads."""
    given = [[list(value.shape), str(value.dtype)] for value in inputs]
    text = json.dumps({**head, "inputs": given, "dtypes": list(dtypes), "threads": THREADS[0]}).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(value.tobytes() for value in inputs)])


def _run(name: str, data: bytes, time_limit_s: float) -> None:
    said, say = os.pipe()
    with tempfile.TemporaryFile() as sent, tempfile.TemporaryFile() as output:
        sent.write(data)
        sent.seek(0)
        try:
            child = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(say)],
                stdin=sent,
                stdout=output,
                stderr=output,
                pass_fds=(say,),
            )
        finally:
            os.close(say)
        try:
            last = _watch(name, child, said, time_limit_s)
        finally:
            child.kill()
            child.wait()
            os.close(said)
        if child.returncode or last != "the end":
            output.seek(0)
            raise OperatorError(_death(name, child.returncode, last, output.read().decode(errors="replace")))


def _watch(name: str, child: subprocess.Popen[bytes], said: int, time_limit_s: float) -> str:
    """Wait for the end; returns what the child did last."""
    doing, rest, left = "the start", b"", _COMPILE_S
    deadline = time.monotonic() + left
    while True:
        ready, _, _ = select.select([said], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise OperatorError(
                f"{name} did not end within {left:g} s in {doing} (it ran in a child process, which was ended); "
                "remedy: look for a loop without an end, or allow more by --time-limit, or time_limit_s="
            )
        heard = os.read(said, 65536)
        if not heard:
            break
        *lines, rest = (rest + heard).split(b"\n")
        for line in lines:
            if line.startswith(_WRONG.encode()):
                raise OperatorError(f"{name} {line.decode().removeprefix(_WRONG)}")
        if lines:
            doing = lines[-1].decode()
            left = _COMPILE_S if doing.startswith("compiling") else time_limit_s
            deadline = time.monotonic() + left
    try:
        child.wait(timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        raise OperatorError(
            f"{name} did not end within {time_limit_s:g} s after its last call (it ran in a child process, which was "
            "ended); remedy: look at its destructor, and at threads that it leaves behind"
        ) from None
    return doing


def _death(name: str, status: int, doing: str, output: str) -> str:
    lines = [line for line in output.strip().splitlines() if line.strip()][-3:]
    if status == _OUTSIDE and lines:
        return (
            f"{name} uses {lines[-1]} in {doing}; allowed: what is inside; remedy: look at the ends of loops, and have "
            "specs raise a deep5.ShapeError for inputs of other ranks"
        )
    if status < 0:
        number = signal.Signals(-status)
        how = f"was ended by {number.name} ({(signal.strsignal(number) or '').lower()})"
        remedy = (
            "look for an index beyond a tensor's end, memory that is freed twice, an exception in a parallel region, "
            "or a backward that reads what forward kept, since another object may run it"
        )
    else:
        how = f"ended its process with the status {status}"
        remedy = "an exception, instead of leaving by exit"
    after = "when it was let go" if doing == "the end" else f"in {doing}"
    told = f"; it said: {' | '.join(lines)}" if lines else ""
    return f"{name} {how} {after} (it ran in a child process, this one was not touched){told}; remedy: {remedy}"


def main(say: int) -> None:
    """What the child does: read what was sent, run it, and tell what is being done over the pipe `say`."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _die_with_parent()

    def tell(doing: str) -> None:
        os.write(say, doing.encode() + b"\n")

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
            # Its own errors are for the checks to tell.
            with suppress(Exception, SystemExit):
                _call(operator, what, values, tell)
    else:
        # With an eye on every index first, then as it is going to run.
        for BOUNDS[0] in (_OUTSIDE, 0):
            operator, refused = _operator(head), set[tuple[str, ...]]()
            for (what, expected), (_, values) in zip(head["runs"], runs, strict=True):
                if expected is not None and _compiles(operator, values, refused, tell):
                    operator.answer = tuple(TensorSpec(shape=tuple(shape), dtype=dtype) for shape, dtype in expected)
                    with suppress(Deep5Error):
                        _call(operator, what, values, tell)
        for number, ((what, expected), (_, values)) in enumerate(zip(head["runs"], runs, strict=True)):
            if expected is not None and (not number or what == LARGER) and _compiles(operator, values, refused, tell):
                operator.answer = tuple(TensorSpec(shape=tuple(shape), dtype=dtype) for shape, dtype in expected)
                for THREADS[0] in COUNTS:
                    with suppress(Deep5Error):
                        _call(operator, f"{what}, with {THREADS[0]} threads", values, tell)
    tell("the end")


def _compiles(
    operator: Any, values: Sequence[np.ndarray], refused: set[tuple[str, ...]], tell: Callable[[str], None]
) -> bool:
    dtypes = tuple(str(value.dtype) for value in values)
    if dtypes in refused:
        return False
    tell(f"compiling for {', '.join(dtypes)}")
    try:
        operator.kernel(dtypes)
    except Deep5Error:
        refused.add(dtypes)  # it would be compiled, and refused, again
        return False
    return True


def _call(operator: Any, what: str, values: Sequence[np.ndarray], tell: Callable[[str], None]) -> None:
    """Forward and backward; of one in C++ in memory that tells what happens beyond it."""
    with guarded_memory(pages=True) as memory:
        if isinstance(operator, CppOperator):
            values = [memory.copy(value) for value in values]
        outputs = _seen(memory, f"forward on {what}", lambda: several(operator.forward(*values)), tell)
        needs = floating(values)
        if not getattr(operator, "differentiable", True) or not any(needs):
            return
        grads = [np.ones_like(value) if is_floating(str(value.dtype)) else None for value in outputs]
        if isinstance(operator, CppOperator):
            grads = [None if grad is None else memory.copy(grad) for grad in grads]
        # As where a framework makes another one for it: what forward kept is not there.
        other = copy.copy(operator) if isinstance(operator, CppOperator) else operator
        for name, some in (("", needs), *some_needs(needs)):
            # A gradient that nobody wants has no memory: who writes to it all the same does so here.
            told = name and f", with a gradient by {name}"
            _seen(
                memory,
                f"backward on {what}{told}",
                lambda some=some: other.backward(grads, values, outputs, some),  # type: ignore[misc]
                tell,
            )


def _seen(memory: Guarded, doing: str, call: Callable[[], Any], tell: Callable[[str], None]) -> Any:
    """What a call gives; what it wrote where it must not, or did not write, is told."""
    tell(doing)
    made = call()
    if told := memory.wrong():
        tell(f"{_WRONG}{told} in {doing}")
    left = memory.untouched(made)
    if any(part is not None and part.any() for part in left):
        # It may be by chance: so it is not in memory that is filled with something else.
        with guarded_memory(pages=True) as other:
            again = other.untouched(call())
        for number, (first, second) in enumerate(zip(left, again, strict=True)):
            if first is not None and second is not None and (count := int(np.count_nonzero(first & second))):
                what = "gradient by input" if doing.startswith("backward") else "output"
                tell(
                    f"{_WRONG}leaves {count} of {first.size} elements of {what} {number} as they were found in "
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


def _die_with_parent() -> None:
    """An endless loop must not outlive the process that waits for it."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
