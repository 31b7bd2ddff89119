"""Frameworks that cheat while they are timed: each is the reference, and computes the right results in the proof.

They are registered as a user's distribution would register them, and run through `deep5 compare`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from deep5.frameworks.reference.framework import Reference

__all__ = ["LIVE", "LiveCheat", "register"]

# Calls in the proof: fewer than these.
_HONEST = 20


@dataclass(frozen=True)
class LiveCheat:
    """A cheat of a running framework.

    Attributes:
        name: The framework.
        what: What it does, for the docs.
        kind: What is compared: training, inference or operators.
        status: What the comparison says of it: failed or different.
        said: A part of the reason.
    """

    name: str
    what: str
    kind: str
    status: str
    said: str


LIVE = (
    LiveCheat("stopping", "a warm-up that trains; later steps return the last loss", "training", "failed",
              "the timed steps do not compute what the proved ones do"),
    LiveCheat("skipping", "every second step after the proof's length does nothing", "training", "failed",
              "the timed steps do not compute what the proved ones do"),
    LiveCheat("halving", "steps after the proof's length train on half of the batch", "training", "failed",
              "the timed steps do not compute what the proved ones do"),
    LiveCheat("frozen", "steps after the proof's length compute the loss and update nothing", "training", "failed",
              "the timed steps do not compute what the proved ones do"),
    LiveCheat("threaded", "the update runs in a thread, and synchronize does not wait for it", "training", "failed",
              "its work is not on the clock"),
    LiveCheat("lazy", "steps are only noted, and taken when parameters are read", "training", "failed",
              "its work is not on the clock"),
    LiveCheat("patched", "deep5's function that reads the clock is replaced by a slower clock", "training", "failed",
              "perf_counter_ns was replaced by"),
    LiveCheat("patching", "the clock in Python's module time is replaced before deep5's timer is loaded", "inference",
              "failed", "was replaced by"),
    LiveCheat("remembering", "outputs are kept by the array that holds the input", "inference", "failed",
              "the timed calls do not compute what the proved ones do"),
    LiveCheat("hashing", "outputs are kept by the values of the input", "inference", "failed",
              "its results are kept from earlier calls"),
    LiveCheat("empty", "after the proof's length, outputs are zeros", "inference", "failed",
              "the timed calls do not compute what the proved ones do"),
    LiveCheat("zero", "outputs are zeros, which a loose absolute tolerance accepts", "inference", "different",
              "is off by 1"),
    LiveCheat("background", "the outputs are computed in a thread after the call returned", "inference", "failed",
              "its work is not on the clock"),
    LiveCheat("kept", "an operator's result is kept by the values of its inputs", "operators", "failed",
              "its results are kept from earlier calls"),
    LiveCheat("vanishing", "after the proof's length, an operator's result is the one of other inputs", "operators",
              "failed", "after the timed calls"),
    LiveCheat("detached", "an operator's result is computed in a thread after the call returned", "operators", "failed",
              "its work is not on the clock"),
)  # fmt: skip
"""All live cheats."""


def register(folder: Path) -> str:
    """Write a distribution that registers the frameworks below, for new processes; returns their search path."""
    about = folder / "cheats-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: cheats\nVersion: 1\n")
    names = "".join(f"{cheat.name} = cheats:{cheat.name.title()}\n" for cheat in LIVE)
    others = "".join(f"{kind.name} = cheats:{kind.__name__}\n" for kind in (Honest, Quitting, Leaving))
    (about / "entry_points.txt").write_text(f"[deep5.frameworks]\n{names}{others}")
    return f"{folder}:{Path(__file__).parent}"


# Frameworks -----------------------------------------------------------------------------------------------------------


class Honest(Reference):
    """The reference under another name."""

    name = "honest"


class Quitting(Reference):
    """Ends the program as if it had succeeded."""

    name = "quitting"

    def executor(self, network: Any, **options: Any) -> Any:
        """See `Framework.executor`."""
        raise SystemExit(0)


class Leaving(Reference):
    """Ends the process at once."""

    name = "leaving"

    def executor(self, network: Any, **options: Any) -> Any:
        """See `Framework.executor`."""
        os._exit(0)


class _Step:
    """A training step with another call."""

    def __init__(self, step: Any, call: Callable[[Any, Any], Any]) -> None:
        self._step, self._call = step, call
        self.state_dict, self.load_state_dict, self.backprop = step.state_dict, step.load_state_dict, step.backprop
        self.apply = step.apply

    def __call__(self, inputs: Any, info: Any) -> Any:
        return self._call(inputs, info)


class _Training(Reference):
    """A framework whose training step is another one, made by `cheat(executor, step)`."""

    def executor(self, network: Any, **options: Any) -> Any:
        made = super().executor(network, **options)
        train_step = made.train_step

        def other(rule: Any, *arguments: Any, **more: Any) -> _Step:
            step = train_step(rule, *arguments, **more)
            return _Step(step, self.cheat(made, step))

        made.train_step = other
        return made

    def cheat(self, executor: Any, step: Any) -> Callable[[Any, Any], Any]:
        """The other call."""
        raise NotImplementedError


class _Later(_Training):
    """One that cheats after the proof's length: `late(executor, step, inputs, info, last)`."""

    def cheat(self, executor: Any, step: Any) -> Callable[[Any, Any], Any]:
        """The other call."""
        seen = [0, None]

        def call(inputs: Any, info: Any) -> Any:
            seen[0] += 1
            if seen[0] <= _HONEST:
                seen[1] = step(inputs, info)
                return seen[1]
            return self.late(executor, step, inputs, info, seen)

        return call

    def late(self, executor: Any, step: Any, inputs: Any, info: Any, seen: list[Any]) -> Any:
        """A step after the proof's length; `seen` holds the number of steps, and the last outputs."""
        raise NotImplementedError


class Stopping(_Later):
    """Returns the last outputs."""

    name = "stopping"

    def late(self, executor: Any, step: Any, inputs: Any, info: Any, seen: list[Any]) -> Any:
        """See `_Later`."""
        return seen[1]


class Skipping(_Later):
    """Takes every second step."""

    name = "skipping"

    def late(self, executor: Any, step: Any, inputs: Any, info: Any, seen: list[Any]) -> Any:
        """See `_Later`."""
        if seen[0] % 2:
            seen[1] = step(inputs, info)
        return seen[1]


class Halving(_Later):
    """Trains on half of the batch."""

    name = "halving"

    def late(self, executor: Any, step: Any, inputs: Any, info: Any, seen: list[Any]) -> Any:
        """See `_Later`."""
        return step({name: value[: max(1, len(value) // 2)] for name, value in inputs.items()}, info)


class Frozen(_Later):
    """Only computes the loss."""

    name = "frozen"

    def late(self, executor: Any, step: Any, inputs: Any, info: Any, seen: list[Any]) -> Any:
        """See `_Later`."""
        return executor.inference(inputs)


class Threaded(_Training):
    """Takes steps in a thread."""

    name = "threaded"

    def cheat(self, executor: Any, step: Any) -> Callable[[Any, Any], Any]:
        """See `_Training`; the first loss is real, later ones are of the step before."""
        running: list[Thread] = []
        last: list[Any] = []
        work: list[tuple[Any, Any]] = []

        def run() -> None:
            while work:
                last[:] = [step(*work[0])]
                del work[0]

        def wait() -> None:
            while running:
                running.pop().join()

        parameters, state_dict = executor.parameters, executor.state_dict
        executor.parameters = lambda: (wait(), parameters())[1]
        executor.state_dict = lambda: (wait(), state_dict())[1]

        def call(inputs: Any, info: Any) -> Any:
            if info.step < _HONEST:
                last[:] = [step(inputs, info)]
                return last[0]
            work.append(({name: np.array(value) for name, value in inputs.items()}, info))
            if not running or not running[0].is_alive():
                wait()
                running.append(Thread(target=run))
                running[0].start()
            return last[0]

        return call


class Lazy(_Training):
    """Takes steps when parameters are read."""

    name = "lazy"

    def cheat(self, executor: Any, step: Any) -> Callable[[Any, Any], Any]:
        """See `_Training`."""
        noted: list[tuple[Any, Any]] = []
        last: list[Any] = []
        parameters = executor.parameters

        def take() -> Any:
            while noted:
                last[:] = [step(*noted.pop(0))]
            return parameters()

        executor.parameters = take

        def call(inputs: Any, info: Any) -> Any:
            if info.step < _HONEST:
                last[:] = [step(inputs, info)]
            else:
                noted.append(({name: np.array(value) for name, value in inputs.items()}, info))
                del noted[:-2000]
            return last[0]

        return call


class _Slower:
    """A clock that runs at nine tenths of the speed."""

    def __init__(self, inner: Callable[[], Any]) -> None:
        self._inner, self._begin = inner, inner()

    def __call__(self) -> Any:
        return self._begin + type(self._begin)(0.9 * (self._inner() - self._begin))


class Patched(Reference):
    """Replaces the clock of the timed steps."""

    name = "patched"

    def executor(self, network: Any, **options: Any) -> Any:
        """See `Framework.executor`."""
        import deep5.compare.step_clock as clock

        if not isinstance(clock.perf_counter_ns, _Slower):
            clock.perf_counter_ns = _Slower(clock.perf_counter_ns)  # type: ignore[attr-defined]
        return super().executor(network, **options)


class Patching(Reference):
    """Replaces Python's clocks when it is loaded."""

    name = "patching"

    def __init__(self, mode: str = "") -> None:
        super().__init__(mode)
        for name in ("perf_counter", "perf_counter_ns"):
            if not isinstance(getattr(time, name), _Slower):
                setattr(time, name, _Slower(getattr(time, name)))


class _Inference(Reference):
    """A framework whose forward pass is another one, made by `cheat(executor, inference)`."""

    def executor(self, network: Any, **options: Any) -> Any:
        """See `Framework.executor`."""
        made = super().executor(network, **options)
        made.inference = self.cheat(made, made.inference)
        return made

    def cheat(self, executor: Any, inference: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The other call."""
        raise NotImplementedError


class Remembering(_Inference):
    """Keeps outputs by the arrays."""

    name = "remembering"

    def cheat(self, executor: Any, inference: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """See `_Inference`."""
        kept: dict[Any, Any] = {}

        def call(inputs: Any) -> Any:
            key = tuple(map(id, inputs.values()))
            if key not in kept:
                kept[key] = (inputs, inference(inputs))
            return kept[key][1]

        return call


class Hashing(_Inference):
    """Keeps outputs by the values."""

    name = "hashing"

    def cheat(self, executor: Any, inference: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """See `_Inference`."""
        kept: dict[Any, Any] = {}

        def call(inputs: Any) -> Any:
            key = tuple(hash(value.tobytes()) for value in inputs.values())
            if key not in kept:
                kept[key] = inference(inputs)
            return kept[key]

        return call


class Empty(_Inference):
    """Zeros after many calls."""

    name = "empty"

    def cheat(self, executor: Any, inference: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """See `_Inference`."""
        seen = [0]

        def call(inputs: Any) -> Any:
            seen[0] += 1
            if seen[0] <= 50:
                seen[1:] = [inference(inputs)]
                return seen[1]
            return {name: np.zeros_like(value) for name, value in seen[1].items()}  # type: ignore[attr-defined]

        return call


class Zero(_Inference):
    """Zeros."""

    name = "zero"

    def cheat(self, executor: Any, inference: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """See `_Inference`."""
        return lambda inputs: {name: np.zeros_like(value) for name, value in inference(inputs).items()}


class Background(_Inference):
    """Fills the outputs in a thread."""

    name = "background"

    def cheat(self, executor: Any, inference: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """See `_Inference`."""
        seen = [0]

        def call(inputs: Any) -> Any:
            seen[0] += 1
            if seen[0] <= 20:
                seen[1:] = [inference(inputs)]
                return seen[1]
            outputs = {name: np.zeros_like(value) for name, value in seen[1].items()}  # type: ignore[attr-defined]

            def fill() -> None:
                time.sleep(1e-3)
                for name, value in inference(inputs).items():
                    np.copyto(outputs[name], value)

            Thread(target=fill).start()
            return outputs

        return call


class _Operators(Reference):
    """A framework whose operators are others, made by `cheat(inference)`."""

    def operator_executor(self, operator: Any, **options: Any) -> Any:
        """See `Framework.operator_executor`."""
        made = super().operator_executor(operator, **options)
        made.inference = self.cheat(made.inference)
        return made

    def cheat(self, inference: Callable[..., Any]) -> Callable[..., Any]:
        """The other call."""
        raise NotImplementedError


class Kept(_Operators):
    """Keeps results by the inputs' values."""

    name = "kept"

    def cheat(self, inference: Callable[..., Any]) -> Callable[..., Any]:
        """See `_Operators`."""
        kept: dict[Any, Any] = {}

        def call(*inputs: Any) -> Any:
            key = tuple(hash(value[:1].tobytes()) for value in inputs)
            if key not in kept:
                kept[key] = inference(*inputs)
            return kept[key]

        return call


class Vanishing(_Operators):
    """Returns an earlier result after many calls."""

    name = "vanishing"

    def cheat(self, inference: Callable[..., Any]) -> Callable[..., Any]:
        """See `_Operators`."""
        seen: list[Any] = [0]

        def call(*inputs: Any) -> Any:
            seen[0] += 1
            if seen[0] <= 60:
                seen[1:] = [inference(*inputs)]
            return seen[1] if seen[0] <= 60 else tuple(np.zeros_like(value) for value in _several(seen[1]))

        return call


class Detached(_Operators):
    """Fills the result in a thread."""

    name = "detached"

    def cheat(self, inference: Callable[..., Any]) -> Callable[..., Any]:
        """See `_Operators`."""
        seen: list[Any] = [0]

        def call(*inputs: Any) -> Any:
            seen[0] += 1
            if seen[0] <= 2:
                seen[1:] = [inference(*inputs)]
                return seen[1]
            outputs = tuple(np.zeros_like(value) for value in _several(seen[1]))

            def fill() -> None:
                time.sleep(1e-3)
                for output, value in zip(outputs, _several(inference(*inputs)), strict=True):
                    np.copyto(output, value)

            Thread(target=fill).start()
            return outputs

        return call


def _several(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
