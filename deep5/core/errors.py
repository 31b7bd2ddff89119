"""The `Deep5Error` family: every message states what happened, what was given, what is allowed and the remedy."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from deep5.core.synonyms import nearest

__all__ = [
    "CheckpointError",
    "CommunicationError",
    "Deep5Error",
    "Ended",
    "Errors",
    "GoalError",
    "MissingDependency",
    "NetworkError",
    "NetworkWarning",
    "OperationTimeout",
    "OperatorError",
    "OutputError",
    "RecipeError",
    "RuleError",
    "RunFailed",
    "ShapeError",
    "TooFewSamples",
    "UnknownName",
    "Unsupported",
    "UsageError",
    "brief",
    "contained",
    "described",
    "suggestion",
]


# From this length on, a message is searched for long words.
_LONG, _LONG_WORD = 1000, re.compile(r"\S{500,}")

Errors = Callable[[bool, bool], AbstractContextManager[Callable[[str], None]]]
"""The error handler passed to commands of the command line: from the flags "show tracebacks" and "print JSON" to a
context manager that turns errors into messages and yields the print function.
"""


class Deep5Error(Exception):
    """Base of all errors that deep5 raises on purpose.

    Attributes:
        exit_status: The exit status of the command line if it ends with such an error.

    >>> import deep5 as d5
    >>> try:
    ...     d5.networks.vgg(depth=12)
    ... except d5.Deep5Error as error:
    ...     print(f"{type(error).__name__}, exit status {error.exit_status}: {error}")
    UsageError, exit status 2: a vgg of depth 12 does not exist; allowed: 11, 13, 16, 19
    """

    exit_status = 3

    def __init__(self, *given: object) -> None:
        super().__init__(*(_shortened(each) if isinstance(each, str) else each for each in given))


class UsageError(Deep5Error):
    """A call or a command line that cannot be carried out as written.

    Attributes:
        exit_status: As for `Deep5Error`.

    >>> import deep5 as d5
    >>> d5.networks.mlp(dropout=1.5)
    Traceback (most recent call last):
        ...
    deep5.core.errors.UsageError: got dropout = 1.5; allowed: a number from 0 up to, not including, 1
    """

    exit_status = 2


class RecipeError(UsageError):
    """An invalid recipe; the message names the file and, where known, the line."""


class GoalError(RecipeError):
    """A goal in METRICS that cannot be read or does not fit its metric."""


class UnknownName(UsageError):
    """A name under which no component is registered."""

    def __init__(self, kind: str, got: str, allowed: Iterable[str], remedy: str = "") -> None:
        names = sorted(allowed)
        message = f"unknown {kind} {got!r}; allowed: {', '.join(names) or 'none'}{suggestion(got, names)}"
        super().__init__(f"{message}; {remedy}" if remedy else message)


class MissingDependency(UsageError):
    """A package that a component needs is not installed; the message holds the command that installs it."""


class OutputError(UsageError):
    """An output folder that cannot be written."""


class CheckpointError(UsageError):
    """A checkpoint that is missing, damaged, or belongs to another run."""


class CommunicationError(Deep5Error):
    """Ranks cannot communicate: one is lost, late, or calls a different operation than the others."""


class OperationTimeout(CommunicationError):
    """An operation that the other ranks have not completed within its time limit."""


class NetworkError(Deep5Error):
    """A network that is invalid, or a feed that does not fit it."""


class NetworkWarning(UserWarning):
    """A declaration in a file that deep5 ignores because it contradicts what the network computes."""


class ShapeError(NetworkError):
    """A tensor whose shape or dtype is not the declared one.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    >>> executor.inference({"input": np.ones((5, 7), np.float32), "label": np.zeros(5, np.int64)})
    Traceback (most recent call last):
        ...
    deep5.core.errors.ShapeError: input 'input': got shape (5, 7), expected float32[N, 4]
    """


class Unsupported(Deep5Error):
    """An operation that a framework or function does not support, with the reason.

    >>> import deep5 as d5
    >>> d5.framework("reference").executor(d5.networks.mlp(), device="cuda")
    Traceback (most recent call last):
        ...
    deep5.core.errors.Unsupported: the reference does not run on device 'cuda:0'; allowed: cpu
    """


class OperatorError(Deep5Error):
    """An operator that breaks the contract of `Operator`, or a compiled one that failed.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> class Total(d5.Operator):
    ...     def specs(self, x): return (x,)  # wrong: the sum over all elements has the shape ()
    ...     def forward(self, x): return x.sum()
    ...     def backward(self, output_grads, inputs, outputs, needs): return (output_grads[0] + 0 * inputs[0],)
    >>> executor = d5.framework("reference").operator_executor(Total())
    >>> executor.inference(np.ones(3))
    Traceback (most recent call last):
        ...
    deep5.core.errors.OperatorError: Total.forward: output 0: got shape (), expected float64[3], as its specs says
    """


class RuleError(Deep5Error):
    """An update rule that breaks the contract of `UpdateRule`."""


class TooFewSamples(Deep5Error):
    """Fewer samples than a statistic needs."""


class RunFailed(Deep5Error):
    """A run that started and could not be completed."""


class Ended(SystemExit):
    """The end of a process that deep5 itself requests; every other SystemExit is a user's code's."""


@contextmanager
def contained() -> Iterator[None]:
    """Make an error of what user code raises beside errors: SystemExit, GeneratorExit, any other BaseException.

    They would end the program, and `SystemExit(0)` even as if it had succeeded. Errors, interruptions and `Ended` pass
    unchanged.

    Raises:
        RecipeError: In their place; the message names file and line.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, Ended):
        raise
    except BaseException as error:
        raise RecipeError(
            f"{_raised_at(error)}{_raised(error)} ends a program instead of reporting an error; allowed: subclasses of "
            "Exception; remedy: raise ValueError(…), say, or return"
        ) from error


def described(error: BaseException) -> str:
    """The type and the message of an error, also of one that cannot say its message."""
    try:
        message = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as other:  # also SystemExit, which would end the program as if it had succeeded
        message = f"(its message raised {type(other).__name__})"
    return f"{type(error).__name__}: {message}"


def _raised(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"exit({'' if error.code is None else brief(error.code)})"
    return described(error).removesuffix(": ")


def _raised_at(error: BaseException) -> str:
    """File and line of the innermost frame that is neither deep5's nor a library's, ending in `": "`, or ''."""
    libraries = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    found, step = "", error.__traceback__
    while step is not None:
        code, module = step.tb_frame.f_code, str(step.tb_frame.f_globals.get("__name__"))
        if not module.startswith("deep5.") and not code.co_filename.startswith((*libraries, "<frozen")):
            found = f"{code.co_filename}:{step.tb_lineno}: "
        step = step.tb_next
    return found


def _shortened(message: str) -> str:
    """A message without the middle of very long words, such as a name of a megabyte in a damaged file."""
    if len(message) < _LONG:
        return message
    return _LONG_WORD.sub(lambda found: f"{found[0][:100]}…{found[0][-20:]}", message)


def suggestion(got: str, allowed: Iterable[str]) -> str:
    """The tail '; did you mean …?' with the allowed name that was probably meant, or an empty string.

    A name that differs only in case is preferred to a synonym (`core/synonyms.py`), and that to a similar spelling.
    """
    name = nearest(got, allowed)
    return f"; did you mean {name!r}?" if name else ""


def brief(value: object) -> str:
    """A value as shown in messages: one line of at most 60 characters."""
    try:
        shown = repr(value)
    except Exception as error:  # a value of a user's class, or one that is nested too deep
        shown = f"{type(value).__name__} that cannot be shown ({type(error).__name__})"
    return " ".join(shown.split())[:60]
