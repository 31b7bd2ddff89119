"""Checks that what is timed is what was proved: the proof runs in another process, which a back-end might recognize.

`not_trained` continues a timed training beside the reference. `reuses_inference` repeats timed calls with other inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from deep5.core import plugins
from deep5.core.tensors import numpy_dtype, to_numpy
from deep5.measuring.kept_results import reuses_results
from deep5.measuring.loops import Work
from deep5.networks.transforms.precision import with_precision
from deep5.training.hyper import hyper_value
from deep5.training.optimizer import RuleOptimizer, as_step_optimizer
from deep5.training.replay import Batch, Make

__all__ = ["WITNESSED", "not_trained", "reuses_inference"]

WITNESSED = 5
"""Steps that are taken beside the reference after a timed training, at most."""
# After this, no further step begins: the reference takes minutes for a step of a large network.
_MOST_S = 5.0
# The proof has the tight tolerances; this finds what computes something else. In float32, a thousand times the rounding
# of a deep network; losses below a hundredth of the first one may have fewer correct digits. Shorter element types, and
# products in TF32, have three.
_OFF, _OFF_SHORT, _FLOOR = 1e-3, 0.1, 1e-2
# A step that changes nothing is off by 1, and one along another gradient by about as much.
_UPDATE = 0.5
# A gradient of which the reference's own float32 has fewer correct digits decides nothing.
_ROUNDED = 1e-2
# Elements that a step changes by more units in the last place than this change in any element type of 24 bits.
_MOVED = 4.0


def not_trained(trainer: Any, batches: Sequence[Batch], make: Make) -> str | None:
    """Take more steps by the optimizer of a timed training, and compare each with the reference from the same state.

    Args:
        trainer: The trainer of the timed steps; its training continues.
        batches: NumPy arrays, for a step each; the first always has one, the others within five seconds.
        make: Creates the same optimizer for the reference.

    Returns:
        How a step differs, in words that follow "it"; None if none does, or the reference's loss is not finite.
    """
    executor, optimizer = trainer.executor, trainer.optimizer
    plain = all(spec.dtype == "float32" for spec in executor.network.trained_specs.values())
    # The state of an update rule is the same on every back-end; that of a native optimizer is its own.
    shared = plain and isinstance(optimizer, RuleOptimizer)
    right = _Beside(with_precision(executor.network, "float64"), make if shared else None)
    single = _Beside(executor.network, make if shared else None)
    allowed, first, begin = _allowed(executor), None, perf_counter()
    for offset, (given, inputs) in enumerate(batches):
        if offset and perf_counter() - begin > _MOST_S:
            break
        info = given._replace(step=trainer.step + offset, epoch=trainer.epoch)
        before = _copied(executor.state_dict())
        states = _copied(optimizer.train_step.state_dict()) if shared else {}
        hyper = optimizer.hyper if shared else {}
        loss = _loss(optimizer.step(inputs, info))
        executor.synchronize()
        after = _copied(executor.state_dict())
        first = abs(right.loss(inputs)) if first is None else first
        expected, gradient, updated = right.step(before, states, hyper, inputs, info)
        if not np.isfinite(expected):
            return None
        if plain and not abs(loss - expected) <= allowed * max(abs(expected), _FLOOR * first):
            return f"gives the loss {loss:.6g} after the timed steps, where the reference gives {expected:.6g}"
        size = _norm(gradient)
        rounded = single.step(before, states, hyper, inputs, info)[1]
        if not size or _norm({name: rounded[name] - value for name, value in gradient.items()}) > _ROUNDED * size:
            continue
        if shared:
            error, moved = _update_error(gradient, before, after, updated)
            if moved > _MOVED and error > _UPDATE:
                return f"updates the parameters in a step after the timed ones with a relative error of {error:.2g}"
        elif _learns(optimizer) and all(np.array_equal(before[name], after[name]) for name in gradient):
            return "changes no parameter in a step after the timed ones"
    return None


class _Beside:
    """The reference's executor of a network, and the optimizer if its state is known."""

    def __init__(self, network: Any, make: Make | None) -> None:
        self._executor = plugins.framework("reference").executor(network)
        self._optimizer: Any = None
        if make is not None:
            self._optimizer = as_step_optimizer(make())
            self._optimizer.bind(self._executor)

    def loss(self, inputs: Mapping[str, np.ndarray]) -> float:
        """The loss of the current parameters."""
        return _loss(self._executor.inference(_fed(inputs, self._executor)))

    def step(
        self,
        state: Mapping[str, np.ndarray],
        states: Mapping[str, np.ndarray],
        hyper: Mapping[str, float],
        inputs: Mapping[str, np.ndarray],
        info: Any,
    ) -> tuple[float, dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Loss, gradients and parameters after a step from a state of the executor and the optimizer; in float64."""
        executor, fed = self._executor, _fed(inputs, self._executor)
        _load(executor, state)
        if self._optimizer is None:
            loss = _loss(executor.inference_and_backprop(fed, info=info))
            return loss, _wide(executor.gradients()), {}
        step = self._optimizer.train_step
        _load(step, states)
        for name, value in hyper.items():
            if self._optimizer.hyper.get(name) != value:
                self._optimizer.set_hyper(name, value)
        loss = _loss(step.backprop(fed, info))
        gradient = _wide(executor.gradients())
        step.apply(executor.gradients(), info)
        return loss, gradient, _wide(executor.state_dict())


def _update_error(
    gradient: Mapping[str, np.ndarray],
    before: Mapping[str, np.ndarray],
    after: Mapping[str, np.ndarray],
    right: Mapping[str, np.ndarray],
) -> tuple[float, float]:
    """The error of an update relative to the reference's, each element weighted by its effect on the loss; and the
    largest change of an element in the reference, in units in the last place.

    If a gradient is only rounding error, the step of many rules is arbitrary there.
    """
    wrong = moved = size = 0.0
    for name, weight in gradient.items():
        unit = np.spacing(np.abs(before[name])).astype(np.float64)
        step = np.abs(right[name] - before[name])
        # Parameters are rounded to the nearest value, which is unrelated to the update.
        off = np.maximum(np.abs(after[name] - right[name]) - unit, 0.0)
        wrong += float(np.vdot(np.abs(weight), off))
        size += float(np.vdot(np.abs(weight), step))
        moved = max(moved, float((step / unit).max(initial=0.0)))
    return (wrong / size if size else wrong), moved


def _learns(optimizer: Any) -> bool:
    """Whether the step size is not zero, and no step is skipped because its gradient overflows."""
    return hyper_value(optimizer, "lr") != 0.0 and getattr(optimizer, "loss_scale", 1.0) == 1.0


def _allowed(executor: Any) -> float:
    """The relative error of a loss or an output."""
    short = any(spec.dtype != "float32" for spec in executor.network.parameter_specs.values() if "float" in spec.dtype)
    return _OFF_SHORT if short or executor.settings().get("tf32") else _OFF


def _fed(inputs: Mapping[str, np.ndarray], executor: Any) -> dict[str, np.ndarray]:
    kinds = {name: numpy_dtype(spec.dtype) for name, spec in executor.network.inputs.items()}
    return {name: value.astype(kinds.get(name, value.dtype), copy=False) for name, value in inputs.items()}


def _load(holder: Any, state: Mapping[str, np.ndarray]) -> None:
    kinds = {name: np.asarray(value).dtype for name, value in holder.state_dict().items()}
    holder.load_state_dict({name: value.astype(kinds[name]) for name, value in state.items()})


def _wide(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array(to_numpy(value), np.float64) for name, value in arrays.items()}


def _copied(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array(to_numpy(value)) for name, value in state.items()}


def _loss(outputs: Mapping[str, Any]) -> float:
    return float(np.asarray(to_numpy(outputs["loss"]), np.float64).reshape(-1)[0])


def _norm(arrays: Mapping[str, np.ndarray]) -> float:
    return float(np.sqrt(sum(float(np.vdot(value, value)) for value in arrays.values())))


def reuses_inference(executor: Any, inputs: Mapping[str, np.ndarray], batches: Sequence[Batch]) -> str | None:
    """Detect whether an executor returns kept outputs, by the array that holds an input or by its values, or others.

    Args:
        executor: The timed executor.
        inputs: The timed inputs; their values are replaced.
        batches: Other values for them.

    Returns:
        A description of the sign, or None.
    """

    def renewed(number: int) -> Work:
        # Also new where the batches repeat.
        for name, value in batches[number % len(batches)][1].items():
            np.copyto(inputs[name], np.roll(value, number + 1))
        return Work(call=executor.inference, arguments=(inputs,), synchronize=executor.synchronize)

    if (sign := reuses_results(renewed)) is not None:
        return f"{sign}: its results are kept from earlier calls"
    right = plugins.framework("reference").executor(with_precision(executor.network, "float64"))
    _load(right, _copied(executor.state_dict()))
    found, allowed = executor.inference(inputs), _allowed(executor)
    for name, value in right.inference(_fed(inputs, right)).items():
        own, other = (np.asarray(to_numpy(each), np.float64) for each in (found[name], value))
        if not np.allclose(own, other, rtol=0.0, atol=allowed * float(np.abs(other).max(initial=0.0)), equal_nan=True):
            return f"its output {name!r} is not the reference's: the timed calls do not compute what the proved ones do"
    return None
