"""`check_executor`: the conformance suite for back-ends, deep5's and third-party ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

from deep5.core import plugins
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.networks.checks.conduct import check_conduct, check_modes, check_steps
from deep5.networks.checks.pair import Pair
from deep5.networks.checks.problems import convolution
from deep5.networks.checks.sizes import LARGE, SIZES, batch_sizes, check_sizes, check_types, check_unknown, check_values
from deep5.networks.checks.suite import Suite
from deep5.networks.judge import ConformanceError
from deep5.networks.zoo import mlp, resnet

__all__ = ["ExecutorCheck", "check_executor", "executor_checks"]

_RULES = ("adam", "momentum", "accelegrad")
_GROUPS = {
    "settings": "settings and threads",
    "inference": "inference",
    "gradients": "gradients",
    "differences": "gradients against central differences",
    "options": "wrt, accumulate, loss_scale, on_gradient",
    "sums": "sums of gradients after steps",
    "copies": "read, write, state_dict, export",
    "refusals": "wrong inputs are refused",
}


def check_executor(framework: str | Framework, *, seed: int = 0) -> None:
    """Check that a back-end's results agree with the reference and that it meets the contract of `GraphExecutor`.

    Outputs and gradients of small networks are compared with the reference's: at batch sizes of 1, 2, 3, 64, one above
    a vector's and a cache block's length (16,385), and drawn ones, in sequence; with unknown dimensions; at zeros,
    ties, large and small values, NaN and infinities; in other memory; and with central differences. So are calls that
    follow others: repeated ones, those after an error, and those on a second thread; training steps, whole, in halves
    and resumed, with parameter groups, a gradient modifier and a gradient pipeline; running statistics, masks and a
    second loss. Further checks: the options of `inference_and_backprop`, singly and together, `settings`, copies in and
    out, and rejection of wrong inputs. In float64, if the back-end supports it, and in float32; other element types
    where it runs them. No call goes unseen: whatever it returns is compared. The back-end's threads are set to 1 and 2
    in between, where they can be set, and then to what they were.

    Args:
        framework: The back-end, or its registered name.
        seed: Seed of the values and of the drawn sizes.

    Raises:
        ConformanceError: A check fails; the message contains the actual and the allowed result.
        UnknownName: Unknown back-end.

    >>> import onnx
    >>> from onnx.reference import ReferenceEvaluator
    >>> import deep5 as d5
    >>> class Rounded(d5.ONNXEngine):
    ...     name = "rounded"
    ...     def version(self): return onnx.__version__
    ...     def compile(self, model, *, threads):
    ...         run = ReferenceEvaluator(onnx.load_from_string(model)).run
    ...         return lambda inputs: [value.round(2).astype(value.dtype) for value in run(None, inputs)]
    >>> try:
    ...     d5.check_executor(Rounded())
    ... except d5.Deep5Error as error:
    ...     print(str(error).partition(" is off")[0])
    rounded on mlp in float32: inference on inputs: the output 'logits'
    """
    checked = plugins.framework(framework) if isinstance(framework, str) else framework
    for check in executor_checks(checked, seed=seed):
        check.run()


def executor_checks(framework: Framework, *, seed: int = 0) -> Iterator[ExecutorCheck]:
    """The groups of checks of `check_executor`, in order; executors are created when a group first needs them.

    Args:
        framework: The back-end.
        seed: As for `check_executor`.
    """
    probe = cache(lambda: framework.executor(mlp(features=6, hidden=5, classes=3)))
    yield ExecutorCheck("interface", lambda: _check_members(framework, probe()))
    # The first type has all checks. The second has each of them once more, on fewer networks, sizes and steps.
    dtypes = ("float64", "float32") if "float64" in probe().capabilities else ("float32",)
    for dtype in dtypes:
        yield from _of_dtype(framework, probe(), dtype, dtype == dtypes[0], seed)
    suite = cache(partial(_convolution, framework, dtypes[0]))
    for check in ("inference", "gradients", "differences"):
        name = f"{_GROUPS[check]}, convolution"
        yield ExecutorCheck(name, partial(_called, suite, f"check_{check}"), optional=True)
    name = f"{_GROUPS['options']}, convolution"
    yield ExecutorCheck(name, partial(_called, suite, "check_options", ((True, (3.0,)),)), optional=True)
    yield ExecutorCheck("unknown dimensions", partial(check_unknown, framework, dtypes[0], seed))
    yield ExecutorCheck("other element types", partial(check_types, framework, dtypes[0], seed))
    yield ExecutorCheck("inference, ResNet", lambda: _residual(framework, dtypes[0]).check_inference(), optional=True)


class ExecutorCheck(NamedTuple):
    """One group of checks.

    Attributes:
        name: What is checked.
        run: Runs the checks; raises `ConformanceError`, or another error of the back-end.
        optional: Whether a back-end may lack the operators that it runs.
    """

    name: str
    run: Callable[[], None]
    optional: bool = False


def _check_members(framework: Framework, probe: Any) -> None:
    members = [*vars(GraphExecutor), *GraphExecutor.__annotations__]
    missing = [name for name in dict.fromkeys(members) if not name.startswith("_") and not hasattr(probe, name)]
    if missing:
        raise ConformanceError(
            f"the executor of {framework.name} does not have {', '.join(missing)}; allowed: all of GraphExecutor"
        )


def _of_dtype(framework: Framework, probe: GraphExecutor, dtype: str, main: bool, seed: int) -> Iterator[ExecutorCheck]:
    """The groups on a small network, and on one with running statistics and masks."""

    def small() -> Suite:
        return Suite(framework, mlp(features=6, hidden=5, classes=3, dtype=dtype), dtype)

    suite = cache(small)
    # One executor for the checks of one network: each size is compiled once.
    pair = cache(lambda: Pair(framework, suite().network, dtype, suite().executor))
    for check, name in _GROUPS.items():
        yield ExecutorCheck(f"{name}, {dtype}", partial(_unchanged, suite, f"check_{check}"))
    rules = _RULES if main else _RULES[:1]
    yield ExecutorCheck(f"training, {dtype}", partial(_unchanged, suite, "check_training", rules))
    sizes = batch_sizes(probe, seed) if main else (1, 64, LARGE)
    yield ExecutorCheck(f"batch sizes, {dtype}", lambda: check_sizes(framework, pair(), sizes, seed))
    yield ExecutorCheck(f"zeros, ties, large and small values, {dtype}", partial(check_values, framework, dtype, seed))
    yield ExecutorCheck(f"repeated calls, errors and threads, {dtype}", lambda: check_conduct(framework, pair(), seed))
    steps = SIZES[:-1] if main else SIZES[:1]
    yield ExecutorCheck(f"steps, whole, in halves and resumed, {dtype}", lambda: check_steps(pair(), steps, seed))
    modes = partial(check_modes, framework, dtype, (4, 7) if main else (4,), seed)
    yield ExecutorCheck(f"running statistics and masks, {dtype}", modes, optional=True)


def _unchanged(made: Callable[[], Suite], check: str, *given: Any) -> None:
    """A check of a suite, which must not change the network."""
    suite = made()
    before = suite.network.structure_hash(), suite.network.weights_hash()
    getattr(suite, check)(*given)
    after = suite.network.structure_hash(), suite.network.weights_hash()
    suite.judge.require(after == before, "changed the network", "an executor of its own values")


def _called(made: Callable[[], Suite], check: str, *given: Any) -> None:
    getattr(made(), check)(*given)


def _convolution(framework: Framework, dtype: str) -> Suite:
    return Suite(framework, convolution(dtype), dtype)


def _residual(framework: Framework, dtype: str) -> Suite:
    return Suite(framework, resnet(depth=8, dtype=dtype), dtype)
