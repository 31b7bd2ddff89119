"""`check_equivalence` and `check_transformation`: check that two networks have the same function and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from deep5.core.arguments import is_finite, is_whole
from deep5.core.errors import NetworkError, UsageError, brief
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.core.seeds import generator
from deep5.core.tensors import TensorSpec, to_numpy
from deep5.networks.arguments import check_network, check_seed, framework_of
from deep5.networks.edit.edited import is_list
from deep5.networks.judge import Judge
from deep5.networks.labels import label_inputs
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute
from deep5.networks.transforms.precision import with_precision

__all__ = ["Transformation", "check_equivalence", "check_transformation"]

Transformation = Callable[[Network], Network]
"""Any function from a network to a network; it does not change its argument.

>>> import deep5 as d5
>>> def named(network: d5.Network) -> d5.Network:
...     return network.rename("Tanh_1", "first")
>>> transformation: d5.Transformation = named
>>> made = d5.check_transformation(transformation, d5.networks.mlp(features=3, hidden=4, classes=2))
>>> [node.name for node in made.nodes][:2]
['Gemm_1', 'first']
"""

TOLERANCE = 1e-9
"""Relative to the largest element. In float64, sums of a million terms in another order differ by about 1e-13, and the
rounding errors of transforms (FFT, Winograd) are of the same size; real errors are far larger."""

_MOST = 1e-2
# A larger tolerance passes different functions: a normalization without its epsilon, a softplus for a ReLU.
_BATCHES = (1, 4, 7)
# Relative to the largest of all gradients: a gradient that is zero except for rounding (a bias before batch
# normalization) is only as exact as the terms that cancel.
_REMAINDER = 1e-3


def check_transformation(
    transform: Transformation,
    network: Network,
    *,
    framework: str | Framework = "reference",
    batches: Sequence[int] = _BATCHES,
    feeds: Sequence[Mapping[str, np.ndarray]] | None = None,
    loss: str | None = None,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Network:
    """Check that a transformation gives an equivalent network for this network in float64.

    Args:
        transform: A function from a network to a network.
        network: A float32 or float64 network; the transformation receives it in float64.
        framework: As in `check_equivalence`, like all arguments below.
        batches: See there.
        feeds: See there.
        loss: See there.
        tolerance: See there.
        seed: See there.

    Returns:
        The transformed network, in float64.

    Raises:
        ConformanceError: The result is not a network, the argument was changed, or as for `check_equivalence`.
        UsageError: The transformation is not a function, the argument is not a network, or as for `check_equivalence`.
        Unsupported: As for `check_equivalence`.

    >>> from deep5.networks import mlp
    >>> made = check_transformation(lambda n: n.rename("Tanh_1", "first"), mlp(features=3, hidden=4, classes=2))
    >>> [node.name for node in made.nodes][:3]
    ['Gemm_1', 'first', 'Gemm_2']
    """
    what = "check_transformation"
    if not callable(transform):
        raise UsageError(
            f"{what}: got {brief(transform)} as the transformation; allowed: a function from a network to a network; "
            f"remedy: {what}(lambda network: …, network)"
        )
    check_network(network, what)
    given = _Given(what, framework, batches, feeds, loss, tolerance, seed)
    before = with_precision(network, "float64")
    judge = Judge(f"the transformation {_called(transform)}", tolerance)
    hashes = before.structure_hash(), before.weights_hash()
    after = transform(before)
    judge.require(isinstance(after, Network), f"gave {type(after).__name__}", "a Network")
    unchanged = (before.structure_hash(), before.weights_hash()) == hashes
    judge.require(unchanged, "changed the network that it was given", "a new network")
    _Pair(before, after, judge, given).check()
    return after


def check_equivalence(
    before: Network,
    after: Network,
    *,
    framework: str | Framework = "reference",
    batches: Sequence[int] = _BATCHES,
    feeds: Sequence[Mapping[str, np.ndarray]] | None = None,
    loss: str | None = None,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> None:
    """Check that two networks compute the same outputs and the same gradients.

    Names and initial values of parameters and buffers must be equal, and so must inputs and outputs. The second network
    may fix a symbolic dimension of an input of the first; then only that size is checked. Compared in float64, on each
    feed: outputs in evaluation and in training, gradients with respect to all parameters and floating-point inputs,
    and the buffers after training.

    Args:
        before: The reference network, in float32 or float64.
        after: The network that should be equivalent.
        framework: The back-end that runs both; it must support float64.
        batches: Minibatch sizes; one feed is drawn for each.
        feeds: Inputs to use instead, by name.
        loss: The scalar output to differentiate; None: the first scalar floating-point output, or if there is none,
            the sum of squares of all floating-point outputs.
        tolerance: For each element, relative to the largest one of its tensor; above 0 and at most 0.01, because a
            larger deviation means a different function.
        seed: Seed of the drawn feeds.

    Raises:
        ConformanceError: They differ; the message names the output, parameter or buffer, and the first element that
            differs with its distance.
        UsageError: An argument is not a network, no batches, inputs that cannot be drawn, or an invalid tolerance or
            seed.
        Unsupported: The framework does not run one of them in float64.

    >>> import deep5 as d5
    >>> network = d5.networks.mlp(features=3, hidden=4, classes=2)
    >>> d5.check_equivalence(network, network.rename("Tanh_1", "first"))
    >>> try:
    ...     d5.check_equivalence(network, network.replace_node("Tanh_1", "Relu"))
    ... except d5.Deep5Error as error:
    ...     print(str(error).partition(", first at")[0])
    mlp instead of mlp: a batch of 1: the output 'logits' differs in 2 of 2 elements
    """
    what = "check_equivalence"
    check_network(before, what, "the network before")
    check_network(after, what, "the network after")
    given = _Given(what, framework, batches, feeds, loss, tolerance, seed)
    judge = Judge(f"{after.model.graph.name} instead of {before.model.graph.name}", tolerance)
    _Pair(with_precision(before, "float64"), with_precision(after, "float64"), judge, given).check()


class _Given:
    """The arguments of both functions besides the networks, checked before anything runs.

    Args:
        what: The function, for messages.
        framework: As in `check_equivalence`, like all arguments below.
        batches: See there.
        feeds: See there.
        loss: See there.
        tolerance: See there.
        seed: See there.
    """

    def __init__(
        self, what: str, framework: Any, batches: Any, feeds: Any, loss: str | None, tolerance: Any, seed: Any
    ) -> None:
        if not is_finite(tolerance) or not 0 < tolerance <= _MOST:
            raise UsageError(
                f"{what}: got tolerance={brief(tolerance)}; allowed: a finite number above 0 and at most {_MOST:g}, "
                "since above that another function passes, and at 0 rounding may fail the same one; remedy: leave "
                f"it at {TOLERANCE:g}"
            )
        if feeds is None:
            self._check_batches(what, batches)
        elif not is_list(feeds) or not all(isinstance(feed, Mapping) for feed in feeds):
            raise UsageError(
                f"{what}: got feeds={brief(feeds)}; allowed: None, or a list of arrays by the input's name; remedy: "
                "feeds=[{…}]"
            )
        if not (batches if feeds is None else feeds):
            raise UsageError(f"{what}: got no feeds and no batches; allowed: at least one; remedy: batches=[1, 4]")
        check_seed(seed, what)
        self.what, self.batches, self.feeds, self.loss, self.seed = what, batches, feeds, loss, seed
        self.framework = framework_of(framework, what)

    @staticmethod
    def _check_batches(what: str, batches: Any) -> None:
        if not is_list(batches):
            raise UsageError(
                f"{what}: got batches={brief(batches)}; allowed: a list of sizes of the minibatch; remedy: "
                + (f"batches=[{batches}]" if is_whole(batches) and batches >= 1 else "batches=[1, 4]")
            )
        for size in batches:
            if not is_whole(size) or size < 1:
                raise UsageError(
                    f"{what}: got a batch of {brief(size)}; allowed: an integer of at least 1; remedy: batches=[1, 4]"
                )


class _Pair:
    """Two networks in float64, the `Judge` of the second, and the arguments of the check."""

    def __init__(self, before: Network, after: Network, judge: Judge, given: _Given) -> None:
        self.before, self.after, self.judge, self.given = before, after, judge, given

    def check(self) -> None:
        """Run all checks."""
        self.check_names()
        given, feeds = self.given, self.given.feeds
        requested = list(self.drawn() if feeds is None else (("the given feed", feed) for feed in feeds))
        networks, loss = _with_loss((self.before, self.after), given.loss, given.what)
        executors = [given.framework.executor(network) for network in networks]
        for index, (what, feed) in enumerate(requested):
            found = [_outcome(executor, feed, loss, index, list(self.before.parameter_specs)) for executor in executors]
            for kind in found[0]:
                want, got = found[0][kind], found[1][kind]
                largest = max((float(np.abs(value).max(initial=0)) for value in want.values()), default=0.0)
                for name, value in want.items():
                    self.judge.alike(got[name], value, f"{what}: {kind} {name!r}", _least(kind, largest))

    def check_names(self) -> None:
        """Check that inputs, outputs, parameters and buffers match, before anything runs."""
        before, after, require = self.before, self.after, self.judge.require
        kinds = (
            ("input", before.inputs, after.inputs),
            ("output", before.outputs, after.outputs),
            ("parameter", before.parameter_specs, after.parameter_specs),
            ("buffer", before.buffer_specs, after.buffer_specs),
        )
        for kind, want, got in kinds:
            require(set(got) == set(want), f"has the {kind}s {sorted(got)}", sorted(want))
            for name, spec in want.items():
                fits = _fits(spec, got[name], fixed=kind in ("input", "output"))
                require(fits, f"the {kind} {name!r} is {got[name]}", spec)
        require(before.frozen == after.frozen, f"freezes {sorted(after.frozen)}", sorted(before.frozen))
        for name in (*before.parameter_specs, *before.buffer_specs):
            same = np.array_equal(before.initial(name), after.initial(name), equal_nan=True)
            require(same, f"{name!r} begins with other values", "the same bits")

    def drawn(self) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """One feed for each minibatch size, or one for the size that the second network fixes."""
        symbols = {extent for spec in self.after.inputs.values() for extent in spec.shape if isinstance(extent, str)}
        first = {spec.shape[0] for spec in self.after.inputs.values() if spec.shape}
        if len(symbols) > 1 or not symbols <= first:
            raise UsageError(
                f"{self.given.what}: the inputs have the symbolic dimensions {', '.join(sorted(symbols))}, of which "
                "only the minibatch's can be drawn; remedy: feeds=[{…}]"
            )
        for size in self.given.batches if symbols else (None,):
            draw = generator(self.given.seed, "check_equivalence", size or 0)
            feed = {name: self.value(name, spec, size, draw) for name, spec in self.after.inputs.items()}
            yield f"a batch of {size}" if size else "a batch of the fixed size", feed

    def value(self, name: str, spec: TensorSpec, size: int | None, draw: Any) -> np.ndarray:
        """Normal noise, or integers below the number of classes or rows."""
        shape = tuple(size if isinstance(extent, str) else extent for extent in spec.shape)
        if spec.dtype.startswith("float"):
            return np.asarray(draw.standard_normal(shape), spec.dtype)
        if spec.dtype == "bool":
            return np.asarray(draw.integers(0, 2, shape), bool)
        below = _below(self.before, name)
        if below is None:
            raise UsageError(
                f"{self.given.what}: what the input {name!r} ({spec}) may hold is not known; remedy: feeds=[{{…}}]"
            )
        return np.asarray(draw.integers(0, below, shape), spec.dtype)


def _outcome(
    executor: GraphExecutor, feed: Mapping[str, np.ndarray], loss: str, step: int, parameters: Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
    """Outputs and gradients of one feed, and the buffers after training, by kind; the executor's state is restored."""
    start, info = executor.state_dict(), StepInfo(step=step, batch_size=1)
    evaluated = _numpy(executor.inference(feed))
    floating = [name for name, value in feed.items() if np.asarray(value).dtype.kind == "f"]
    trained = _numpy(executor.inference_and_backprop(feed, loss, info=info, wrt=[*parameters, *floating]))
    found = {
        "the output": evaluated,
        "in training, the output": trained,
        "the gradient by": _numpy(executor.gradients()),
        "after training, the buffer": _numpy(executor.buffers()),
    }
    executor.load_state_dict(start)
    return found


def _least(kind: str, largest: float) -> float:
    return _REMAINDER * largest if kind == "the gradient by" else 0.0


def _numpy(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array(to_numpy(value)) for name, value in values.items()}


def _fits(want: TensorSpec, got: TensorSpec, *, fixed: bool) -> bool:
    """Whether two specifications are equal, or equal except for integers in place of symbols."""
    if want == got:
        return True
    return (
        fixed
        and want.dtype == got.dtype
        and len(want.shape) == len(got.shape)
        and all(w == g or isinstance(w, str) for w, g in zip(want.shape, got.shape, strict=True))
    )


def _with_loss(networks: tuple[Network, Network], loss: str | None, what: str) -> tuple[tuple[Network, Network], str]:
    """Networks with a scalar output to differentiate, and that output's name."""
    outputs = {name: spec for name, spec in networks[0].outputs.items() if spec.dtype.startswith("float")}
    if loss is not None:
        return networks, loss
    scalar = next((name for name, spec in outputs.items() if not spec.shape), None)
    if scalar is not None:
        return networks, scalar
    if not outputs:
        raise NetworkError(
            f"{what}: the network has no floating-point output to differentiate among "
            f"{', '.join(networks[0].outputs)}; remedy: with_outputs"
        )
    before, after = (_sum_of_squares(network, list(outputs)) for network in networks)
    return (before, after), "equivalence/loss"


def _sum_of_squares(network: Network, names: Sequence[str]) -> Network:
    loss = "equivalence/loss"
    squares = [f"equivalence/{index}" for index in range(len(names))]
    made = network
    for name, square in zip(names, squares, strict=True):
        made = made.add_node("ReduceSumSquare", [name], [square], keepdims=0)
    return made.add_node("Sum", squares, [loss]).with_outputs([*network.outputs, loss])


def _below(network: Network, name: str) -> int | None:
    """The exclusive upper bound of an input's labels or row indices; None if the network does not define one."""
    found = [labels.classes for labels in label_inputs(network) if labels.name == name]
    for value in network.model.graph.inputs:
        for use in value.uses() if value.name == name else ():
            table = use.node.inputs[0]
            if use.node.op_type != "Gather" or use.idx != 1 or table is None or table.shape is None:
                continue
            extent = table.shape[int(attribute(use.node, "axis", 0))]
            found += [extent] if isinstance(extent, int) else []
    return min(found, default=None)


def _called(transform: Transformation) -> str:
    return str(getattr(transform, "__qualname__", type(transform).__name__))
