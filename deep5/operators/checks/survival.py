"""Runs an operator in a separate process before it runs in the user's, so that crashes and endless loops happen there.

The parent sends the inputs and, for a C++ operator, the source and the attributes, as strings and bytes. It sends no
class, so that operators defined in a notebook work, and nothing is unpickled. A Python operator is recreated by a named
function. The process is spawned, not forked: threads of OpenMP and of frameworks do not survive a fork. The results of
a C++ operator's `specs` are computed beforehand and sent along. The child's code is in `child`.
"""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deep5.core.arguments import THREADS
from deep5.core.errors import Deep5Error, OperatorError, ShapeError
from deep5.core.process_end import how_ended
from deep5.core.python_child import run_function
from deep5.operators.checks.child import OUTSIDE, WRONG, main
from deep5.operators.checks.inputs import LARGE, LARGER, variations
from deep5.operators.checks.subject import specs
from deep5.operators.checks.threads import too_large
from deep5.operators.contract import name_of, specs_of
from deep5.operators.cpp import CppOperator

__all__ = ["death", "survive", "survive_again"]

# The compiler has its own limit, which is lower.
_COMPILE_S = 300.0
_SURVIVED: set[str] = set()


def survive(operator: CppOperator, inputs: Sequence[np.ndarray], dtypes: Sequence[str], time_limit_s: float) -> None:
    """Run an operator in a child process on every kind of input that the checks use.

    Source and inputs that survived once are not run again. Errors that the operator raises are left to the checks.

    Args:
        operator: The operator.
        inputs: Contiguous arrays.
        dtypes: Element types to try for the floating-point inputs.
        time_limit_s: Time limit in seconds of one call, without compiling.

    Raises:
        OperatorError: It crashed, ended the process, or exceeded the time limit; the message says where.
    """
    runs: list[list[Any]] = []
    for what, values in variations(inputs, dtypes):
        try:
            outputs = specs_of(operator, specs(values))
            if (what == LARGER or LARGE in what) and too_large(outputs):
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
    # The source, and the modification times of the files next to it, which it may include.
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
    """The same for a Python operator, which the child recreates.

    Args:
        name: Name of the operator in messages.
        maker: `MODULE:FUNCTION` of a function that returns the operator.
        arguments: Arguments of the function, in JSON types.
        inputs: Contiguous arrays.
        dtypes: Element types to try for the floating-point inputs.
        time_limit_s: Time limit in seconds of one call.

    Raises:
        OperatorError: As for `survive`.
    """
    _run(name, _packed({"maker": maker, "arguments": list(arguments)}, inputs, dtypes), time_limit_s)


def _packed(head: Mapping[str, Any], inputs: Sequence[np.ndarray], dtypes: Sequence[str]) -> bytes:
    """The data that `main` reads."""
    given = [[list(value.shape), str(value.dtype)] for value in inputs]
    text = json.dumps({**head, "inputs": given, "dtypes": list(dtypes), "threads": THREADS[0]}).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(value.tobytes() for value in inputs)])


def _run(name: str, data: bytes, time_limit_s: float) -> None:
    def hear(doing: str) -> float:
        if doing.startswith(WRONG):
            raise OperatorError(f"{name} {doing.removeprefix(WRONG)}")
        return _COMPILE_S if doing.startswith("compiling") else time_limit_s

    ended = run_function(main, time_limit_s=_COMPILE_S, sent=data, hear=hear)
    if ended.stopped is not None and ended.doing == "the end":
        raise OperatorError(
            f"{name} {ended.stopped} after its last call (it ran in a child process, now stopped); remedy: look at "
            "its destructor, and at threads that it leaves running"
        )
    if ended.stopped is not None:
        raise OperatorError(
            f"{name} {ended.stopped}{ended.where} (it ran in a child process, now stopped); remedy: look for an "
            f"endless loop{', or allow more by --time-limit, or time_limit_s=' if ended.late else ''}"
        )
    if ended.status or ended.doing != "the end":
        raise OperatorError(death(name, ended.status, ended.doing, ended.output.decode(errors="replace")))


def death(name: str, status: int, doing: str, output: str) -> str:
    """Describe how and where an operator ended its process, with a remedy.

    Args:
        name: Name of the operator.
        status: Return code of the process from `subprocess`; negative for a signal.
        doing: Its last action.
        output: Its output, of which the message includes the last lines.
    """
    lines = [line for line in output.strip().splitlines() if line.strip()][-3:]
    if status == OUTSIDE and lines:
        return (
            f"{name} uses {lines[-1]} in {doing}; allowed: what is inside; remedy: look at the ends of loops, have "
            "specs raise a deep5.ShapeError for inputs of other ranks, and throw where an integer that is an index "
            "is out of range"
        )
    if -status == signal.SIGINT:
        return (
            f"{name} raised KeyboardInterrupt, or was interrupted, in {doing} (it ran in a child process); allowed: "
            "errors that are subclasses of Exception; remedy: raise another one, say a ValueError"
        )
    if status < 0:
        how = f"{how_ended(status)} ({(signal.strsignal(-status) or '').lower()})"
        remedy = (
            "look for an index beyond a tensor's end, memory that is freed twice, an exception in a parallel region, "
            "or a backward that reads what forward kept, since another object may run it"
        )
    else:
        how = f"ended its process with the status {status}"
        remedy = "an exception, instead of leaving by exit"
    after = "when it was deleted" if doing == "the end" else f"in {doing}"
    reported = f"; its last output: {' | '.join(lines)}" if lines else ""
    return f"{name} {how} {after} (it ran in a child process, which leaves this one intact){reported}; remedy: {remedy}"
