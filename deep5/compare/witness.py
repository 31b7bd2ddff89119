"""Checks that what is timed is what was proved: the proof runs in another process, which a back-end might recognize.

`not_trained` continues a timed training beside the reference. `reuses_inference` repeats timed calls with other inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deep5.core import plugins
from deep5.core.tensors import to_numpy
from deep5.measuring.kept_results import reuses_results
from deep5.measuring.loops import Work
from deep5.networks.transforms.precision import with_precision
from deep5.training.optimizer import RuleOptimizer
from deep5.training.replay import Batch, update_error

__all__ = ["WITNESSED", "not_trained", "reuses_inference"]

WITNESSED = 5
"""Steps that are taken beside the reference after a timed training."""
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


def not_trained(trainer: Any, batches: Sequence[Batch]) -> str | None:
    """Take more steps by the optimizer of a timed training, and compare each with the reference from the same state.

    Args:
        trainer: The trainer of the timed steps; its training continues.
        batches: NumPy arrays, for a step each.

    Returns:
        How a step differs, in words that follow "it"; None if none does, or the reference's loss is not finite.
    """
    executor, optimizer = trainer.executor, trainer.optimizer
    reference, allowed = plugins.framework("reference"), _allowed(executor)
    right = reference.executor(with_precision(executor.network, "float64"))
    single = reference.executor(executor.network)
    first = abs(_loss(right.inference(_wide(batches[0][1], right))))
    for offset, (given, inputs) in enumerate(batches):
        info = given._replace(step=trainer.step + offset, epoch=trainer.epoch)
        before = _copied(executor.state_dict())
        states = _copied(optimizer.train_step.state_dict()) if isinstance(optimizer, RuleOptimizer) else {}
        loss = _loss(optimizer.step(inputs, info))
        executor.synchronize()
        after = executor.state_dict()
        right.load_state_dict({name: np.asarray(value, np.float64) for name, value in before.items()})
        expected = _loss(right.inference_and_backprop(_wide(inputs, right), info=info))
        if not np.isfinite(expected):
            return None
        if not abs(loss - expected) <= allowed * max(abs(expected), _FLOOR * first):
            return f"gives the loss {loss:.6g} after the timed steps, where the reference gives {expected:.6g}"
        gradient = {name: np.asarray(to_numpy(value), np.float64) for name, value in right.gradients().items()}
        single.load_state_dict(before)
        single.inference_and_backprop(inputs, info=info)
        rounded = {name: np.asarray(to_numpy(value), np.float64) for name, value in single.gradients().items()}
        fault = _not_updated(optimizer, gradient, rounded, before, states, after, info)
        if fault is not None:
            return fault
    return None


def _not_updated(
    optimizer: Any,
    gradient: Mapping[str, np.ndarray],
    rounded: Mapping[str, np.ndarray],
    before: Mapping[str, np.ndarray],
    states: Mapping[str, np.ndarray],
    after: Mapping[str, Any],
    info: Any,
) -> str | None:
    size = _norm(gradient)
    if not size or _norm({name: rounded[name] - value for name, value in gradient.items()}) > _ROUNDED * size:
        return None
    plain = all(before[name].dtype == np.float32 for name in gradient)
    if not plain or not isinstance(optimizer, RuleOptimizer) or not optimizer.bare:
        still = all(np.array_equal(before[name], np.asarray(after[name])) for name in gradient)
        return "changes no parameter in a step after the timed ones" if still and _learns(optimizer) else None
    error, moved = update_error(optimizer.rule, before, states, gradient, info, after)
    if moved > _MOVED and error > _UPDATE:
        return f"updates the parameters in a step after the timed ones with a relative error of {error:.2g}"
    return None


def _learns(optimizer: Any) -> bool:
    """Whether the step size is not zero, and no step is skipped because its gradient overflows."""
    return bool(getattr(optimizer, "hyper", {}).get("lr", 1.0)) and getattr(optimizer, "loss_scale", 1.0) == 1.0


def _allowed(executor: Any) -> float:
    """The relative error of a loss or an output."""
    short = any(spec.dtype != "float32" for spec in executor.network.parameter_specs.values() if "float" in spec.dtype)
    return _OFF_SHORT if short or executor.settings().get("tf32") else _OFF


def _wide(inputs: Mapping[str, np.ndarray], executor: Any) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(value, np.float64) if executor.network.inputs[name].dtype == "float64" else value
        for name, value in inputs.items()
    }


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
    state = _copied(executor.state_dict())
    right.load_state_dict({name: np.asarray(value, np.float64) for name, value in state.items()})
    found, allowed = executor.inference(inputs), _allowed(executor)
    for name, value in right.inference(_wide(inputs, right)).items():
        own, other = (np.asarray(to_numpy(each), np.float64) for each in (found[name], value))
        if not np.allclose(own, other, rtol=0.0, atol=allowed * float(np.abs(other).max(initial=0.0)), equal_nan=True):
            return f"its output {name!r} is not the reference's: the timed calls do not compute what the proved ones do"
    return None
