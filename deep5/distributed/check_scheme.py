"""`check_scheme`: the conformance suite of communication schemes, on ranks that are threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from deep5.core.communicator import Communicator
from deep5.core.errors import Deep5Error, UsageError
from deep5.core.events import StepInfo
from deep5.core.plugins import framework
from deep5.core.seeds import generator
from deep5.core.tensors import to_numpy
from deep5.core.worker_threads import begin
from deep5.distributed.communicators.threads import run_in_threads
from deep5.distributed.schemes.base import DistributedOptimizer
from deep5.distributed.sharding import part_of
from deep5.networks.edit.builder import NetworkBuilder, zeros
from deep5.networks.judge import Judge
from deep5.networks.network import Network
from deep5.networks.zoo import mlp
from deep5.training.rules.momentum import Momentum
from deep5.training.rules.sgd import SGD

__all__ = ["Algorithm", "check_scheme"]

Algorithm = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""From (step, rows, updates, shares) to the rows after the step. `rows` and `updates` have the shape (ranks, elements
of all parameters), and updates are minus the step's learning rate times the gradients; `shares`, of the shape (ranks,),
are the ranks' fractions of the step's samples."""

_LR = 0.5
# Sums in another order, over some twenty steps.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
# Samples of all ranks in each step: with two and three ranks, parts of every size from 0 to 6, and large ones.
_SIZES = (8, 8, 1, 2, 3, 13, 17, 5, 8, 4, 16_385, 8, 20, 64, 6, 3, 8, 8)
# Steps before which all ranks take one that fails, which run on another thread, and whose inputs are not contiguous.
_AFTER_ERROR, _ELSEWHERE, _STRIDED = (4, 8), (6, 11), (1, 5, 9)
_SAVED = 7
# The last step's batch contains a NaN. Epochs and learning rates change in between.
_NOT_FINITE = len(_SIZES) - 1
_STEPS_PER_EPOCH = 5
_TIMEOUT_S = 300.0


def check_scheme(
    scheme: DistributedOptimizer,
    *,
    ranks: Sequence[int] = (1, 2, 3, 4),
    algorithm: Algorithm | None = None,
    seed: int = 0,
) -> None:
    """Check that a scheme trains as its algorithm says, at every step, on every rank.

    The parameters after each step are compared with the algorithm in NumPy, on gradients of the reference: of batches
    of many sizes, some of which leave ranks without samples, in float64 and float32, in other memory, after a step that
    failed, and on another thread, with learning rates that change, over several epochs, and last with a NaN. The
    outputs of each step are those of the rank's part, and inputs stay unchanged. Ranks of a `consistent` scheme hold
    the same bits. Two runs give the same bits, and so does one that is saved and resumed. A network with six
    parameters, one of more than 20,000 elements, needs several messages or large ones. With one rank, nothing is
    different from the wrapped optimizer.

    Args:
        scheme: Not wrapped around an optimizer.
        ranks: Numbers of ranks.
        algorithm: The scheme with plain SGD; None: if the scheme is `consistent` and compresses nothing, SGD on the
            samples of all ranks; otherwise the parameters of several ranks are compared only between runs.
        seed: Seed of samples and scheme.

    Raises:
        ConformanceError: A check fails; the message contains the actual and the allowed result.
    """
    for size in ranks:
        for dtype in _TOLERANCE:
            _Case(scheme, size, mlp(features=3, hidden=5, classes=4, dtype=dtype), dtype, algorithm, seed).check()
        _Case(scheme, size, _large(), "float64", algorithm, seed, sizes=_SIZES[:3]).check_steps()


def _large() -> Network:
    """Three linear layers with tanh between them, the second of 151 x 150 elements."""
    build = NetworkBuilder("large", dtype="float64", seed=5)
    x, label, width = build.input("input", ("N", 3)), build.input("label", ("N",), "int64"), 3
    for number, outputs in enumerate((150, 151, 4)):
        weight = build.parameter(f"fc{number}.weight", (outputs, width))
        x = build.op("Gemm", x, weight, build.parameter(f"fc{number}.bias", (outputs,), zeros), transB=1)
        x, width = x if number == 2 else build.op("Tanh", x), outputs
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label, reduction="mean")})


def _rate(step: int) -> float:
    """The learning rate of a step."""
    return _LR / (1 + step // 4)


def _info(step: int, samples: int, count: int, seed: int) -> StepInfo:
    return StepInfo(step=step, epoch=step // _STEPS_PER_EPOCH, batch_size=samples, global_batch_size=count, seed=seed)


class _Case:
    """A scheme on some ranks, and a network.

    Args:
        scheme: As for `check_scheme`.
        size: Number of ranks.
        network: The network that every rank trains.
        dtype: Its element type.
        algorithm: As for `check_scheme`.
        seed: As for `check_scheme`.
        sizes: Samples of all ranks in each step.
    """

    def __init__(
        self,
        scheme: DistributedOptimizer,
        size: int,
        network: Network,
        dtype: str,
        algorithm: Algorithm | None,
        seed: int,
        sizes: Sequence[int] = _SIZES,
    ) -> None:
        self._scheme, self._size, self._network, self._dtype, self._seed = scheme, size, network, dtype, seed
        self._sizes = sizes
        self._names = list(network.parameter_specs)
        self.judge = Judge(f"{type(scheme).__name__} on {size} ranks in {dtype}", _TOLERANCE[dtype])
        self._algorithm = algorithm
        self._alone = framework("reference").executor(network)

    def check(self) -> None:
        """Every check."""
        self.check_steps()
        self._check_runs()

    def check_steps(self) -> None:
        """Compare each step with the algorithm, and with SGD where there is one rank or the scheme is consistent."""
        found = self._trained(SGD, disturbed=True)
        wrapped = found[0][2]
        consistent, lockstep = bool(wrapped.consistent), bool(wrapped.lockstep)
        algorithm = self._algorithm
        if self._single() or (algorithm is None and self._exact(consistent)):
            algorithm = _together
        rows = np.tile(self._flat(self._alone.state_dict()), (self._size, 1))
        for step, count in enumerate(self._sizes):
            parts = [self._part(step, count, rank) for rank in range(self._size)]
            updates, shares = np.zeros_like(rows), np.array([samples for _, samples in parts]) / count
            before = [found[rank][0][step - 1] if step else rows[rank] for rank in range(self._size)]
            known = rows if algorithm is not None else before
            for rank, (inputs, samples) in enumerate(parts):
                outputs, gradient = self._reference(known[rank], inputs)
                updates[rank] = -_rate(step) * gradient if samples else 0.0
                what = f"step {step} of {count} samples on rank {rank}"
                for name, value in outputs.items() if lockstep else ():
                    self.judge.alike(found[rank][1][step][name], value, f"{what}: the output {name!r}")
            if algorithm is not None and lockstep:
                rows = algorithm(step, rows, updates, shares)
                for rank in range(self._size):
                    what = f"the parameters after step {step} of {count} samples on rank {rank}"
                    self.judge.alike(found[rank][0][step], rows[rank].astype(self._dtype), what)
            for rank in range(1, self._size) if consistent else ():
                self.judge.identical(
                    {"parameters": found[rank][0][step]},
                    {"parameters": found[0][0][step]},
                    f"rank {rank} differs from rank 0 after step {step} in the",
                )

    def _single(self) -> bool:
        """Whether there is one rank, which does what its optimizer does."""
        return self._size == 1 and type(self._scheme).alone

    def _exact(self, consistent: bool) -> bool:
        """Whether the scheme does what its optimizer would do with the samples of all ranks."""
        return self._single() or (consistent and self._scheme.compression is None)

    def _check_runs(self) -> None:
        """Two runs with momentum, one of them saved and resumed, give the same bits; one rank, those of momentum."""
        rule: Callable[..., Any] = Momentum
        if self._scheme.compression is not None:
            try:
                self._scheme.compression.check_optimizer(Momentum(lr=_LR))
            except UsageError:  # it has a momentum
                rule = SGD
        runs = [self._trained(rule, saved_after=saved) for saved in (None, None, _SAVED)]
        if not runs[0][0][2].lockstep:
            return
        for what, other in (("two runs", runs[1]), (f"a run that resumed after step {_SAVED - 1}", runs[2])):
            for rank in range(self._size):
                for step in range(len(self._sizes)):
                    self.judge.identical(
                        {"parameters": other[rank][0][step]},
                        {"parameters": runs[0][rank][0][step]},
                        f"{what} differ after step {step} on rank {rank} in the",
                    )
        if self._exact(bool(runs[0][0][2].consistent)):
            executor = framework("reference").executor(self._network)
            rule_alone = rule(lr=_LR)
            step_alone = executor.train_step(rule_alone)
            for step, count in enumerate(self._sizes):
                rule_alone.lr = _rate(step)
                step_alone(self._batch(step, count), _info(step, count, 0, self._seed))
                want = self._flat(executor.state_dict())
                for rank in range(self._size):
                    what = f"with {rule.__name__}, the parameters after step {step} on rank {rank}"
                    self.judge.alike(runs[0][rank][0][step], want, what)

    def _trained(
        self, rule: Callable[..., Any], *, disturbed: bool = False, saved_after: int | None = None
    ) -> list[tuple[list[np.ndarray], list[Mapping[str, np.ndarray]], Any]]:
        """Train on all ranks; returns the parameters after each step and its outputs, of each rank.

        Args:
            rule: The class of the update rule.
            disturbed: Whether some steps follow one that failed, run on another thread, or have inputs in other memory.
            saved_after: Number of steps after which the state is saved, and new objects resume.
        """

        def made(communicator: Communicator) -> tuple[Any, Any, Any]:
            executor, update = framework("reference").executor(self._network), rule(lr=_LR)
            own = self._scheme.wrap(update, communicator, seed=self._seed)
            own.bind(executor)
            return executor, own, update

        def work(communicator: Communicator) -> tuple[list[np.ndarray], list[Mapping[str, np.ndarray]], Any]:
            executor, own, update = made(communicator)
            after, outputs = list[np.ndarray](), list[Mapping[str, np.ndarray]]()
            for step, count in enumerate(self._sizes):
                if step == saved_after:
                    kept = executor.state_dict(), own.state_dict()
                    executor, own, update = made(communicator)
                    executor.load_state_dict(kept[0])
                    own.load_state_dict(kept[1])
                inputs, samples = self._part(step, count, communicator.rank)
                info = _info(step, samples, count, self._seed)
                update.lr = _rate(step)
                call = partial(own.step, inputs, info)
                if disturbed and step in _STRIDED:
                    laid = {name: np.repeat(value, 2, axis=0)[::2] for name, value in inputs.items()}
                    call = partial(own.step, laid, info)
                if disturbed and step in _AFTER_ERROR and own.lockstep:
                    before = self._flat(executor.state_dict())
                    with suppress(Deep5Error):
                        own.step({**inputs, "input": inputs["input"][:, :-1]}, info)
                    same = {"parameters": self._flat(executor.state_dict())}, {"parameters": before}
                    self.judge.identical(*same, f"rank {communicator.rank}: a step that failed changed the")
                before_inputs = {name: value.copy() for name, value in inputs.items()}
                if disturbed and step in _ELSEWHERE:
                    with ThreadPoolExecutor(1, initializer=begin) as pool:
                        made_outputs = pool.submit(call).result(_TIMEOUT_S)
                else:
                    made_outputs = call()
                what = f"step {step} on rank {communicator.rank} changed the input"
                self.judge.identical(call.args[0], before_inputs, what)
                outputs.append({name: np.array(to_numpy(value)) for name, value in made_outputs.items()})
                after.append(self._flat(executor.state_dict()))
            return after, outputs, own

        return run_in_threads(self._size, work, timeout_s=_TIMEOUT_S)

    def _batch(self, step: int, count: int) -> dict[str, np.ndarray]:
        draw = generator(self._seed, "check_scheme", step)
        values = draw.standard_normal((count, 3)).astype(self._dtype)
        if step == _NOT_FINITE:
            values[0, 0] = np.nan
        return {"input": values, "label": draw.integers(0, 4, count)}

    def _part(self, step: int, count: int, rank: int) -> tuple[dict[str, np.ndarray], int]:
        """A rank's part of the batch, one borrowed sample if it is empty; and its number of samples."""
        begin, end = part_of(count, rank, self._size)
        whole = self._batch(step, count)
        return {
            name: value[begin : max(end, begin + 1)] if end > begin else value[:1] for name, value in whole.items()
        }, (end - begin)

    def _reference(self, row: np.ndarray, inputs: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The reference's outputs and gradient at these parameters."""
        executor = self._alone
        executor.write(self._names, np.ascontiguousarray(row.astype(self._dtype)))
        outputs = {name: np.array(to_numpy(value)) for name, value in executor.inference_and_backprop(inputs).items()}
        return outputs, self._flat(executor.gradients())

    def _flat(self, values: Mapping[str, Any]) -> np.ndarray:
        return np.asarray(np.concatenate([np.array(to_numpy(values[name])).reshape(-1) for name in self._names]))


def _together(step: int, rows: np.ndarray, updates: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """SGD on the samples of all ranks."""
    return np.asarray(rows + shares @ updates)
