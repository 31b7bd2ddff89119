"""Gradients of drawn cases in float64: deep5's rules against central differences, also at zero and at ties.

The loss is the sum of the outputs times fixed random numbers, and each input moves along one of its elements. Where the
slopes on both sides agree, the gradient is that slope. At a kink the slopes of an element of the outputs differ, and
its share of the gradient is between the two; tests/support/kinks.py has the conventions, which are exact. At a jump,
which a smaller step does not make smaller, there is no slope, and nothing is compared.
"""

from __future__ import annotations

import re
import warnings
import zlib
from typing import Any

import numpy as np
import onnx

import deep5 as d5
from deep5.core.errors import Deep5Error, Unsupported
from deep5.networks import Network
from deep5.networks.gradients import vjp_network
from drawn_answers import Case
from drawn_bounds import SETTINGS, widened
from drawn_runs import Outcome
from opset_cases import declare

__all__ = ["gradient_outcome"]

STEP = 1e-6
SMALLER = 1 / 8
"""The part of a step that separates slopes from jumps: a slope changes the loss by this part, a jump by all of it."""
ELEMENTS = 12
"""So many elements of each input are moved."""


def _fed(case: Case) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The case in float64, with every floating-point input fed that is no setting of the operator."""
    model, fed = widened(case.model), dict(case.fed)
    kept = []
    settings = {f"x{position}" for position in SETTINGS.get(case.operator, ())}
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.DOUBLE and tensor.name not in settings:
            fed[tensor.name] = onnx.numpy_helper.to_array(tensor)
            value = onnx.helper.make_tensor_value_info(tensor.name, onnx.TensorProto.DOUBLE, list(tensor.dims))
            model.graph.input.append(value)
        else:
            kept.append(tensor)
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model, {name: _wide(value) for name, value in fed.items()}


def _wide(value: Any) -> Any:
    if isinstance(value, list):
        return [_wide(each) for each in value]
    return value.astype(np.float64) if value.dtype.name in ("float16", "float32", "bfloat16") else value


def gradient_outcome(case: Case) -> Outcome:
    """Compare the gradients of a case with differences."""
    model, fed = _fed(case)
    wrt = [
        name for name, value in fed.items() if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size
    ]
    if case.drawn.training:  # tests/support/gradient_layers.py has its statistics
        return Outcome(
            kind="unanswered",
            reason="a layer in training, whose statistics tests/support/gradient_layers.py differentiates",
        )
    if case.drawn.random or not wrt:
        return Outcome(
            kind="unanswered", reason="a random operator" if case.drawn.random else "no floating-point input"
        )
    reference = d5.framework("reference")
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            network = Network.from_onnx(model)
            forward = reference.executor(network)
            start = forward.inference(fed, training=False)
        except Deep5Error as error:
            return Outcome(kind="unanswered", reason=f"an operator that does not run in float64: {str(error)[:160]}")
        rng = np.random.default_rng(zlib.crc32(case.name.encode()))
        outputs = {
            name: np.asarray(value)
            for name, value in start.items()
            if isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind == "f"
        }
        seeds = {name: rng.uniform(0.5, 1.5, value.shape).astype(value.dtype) for name, value in outputs.items()}
        if not outputs or any(value.dtype != np.float64 for value in outputs.values()):
            return Outcome(kind="unanswered", reason="no floating-point output")
        if not all(np.isfinite(value).all() for value in outputs.values()):
            return Outcome(kind="unanswered", reason="an output that is not finite")
        declare(model, [start[value.name] for value in model.graph.output])
        try:
            found = _gradients(Network.from_onnx(model), wrt, fed, seeds)
        except Deep5Error as error:
            return Outcome(kind="refused", reason=str(error)[:240])

        def terms(name: str, moved: np.ndarray) -> np.ndarray:
            """The terms of the loss, one of each element of the outputs; NaN if these have other shapes."""
            got = forward.inference({**fed, name: moved}, training=False)
            found = [(np.asarray(got[key]), seed) for key, seed in seeds.items()]
            if any(now.shape != seed.shape for now, seed in found):
                return np.full(sum(seed.size for seed in seeds.values()), np.nan)
            return np.concatenate([(now.astype(np.float64) * seed).ravel() for now, seed in found])

        for name in found:
            said = _compared(name, fed[name], found[name], terms, rng)
            if said is not None:
                return Outcome(kind="wrong", reason=said)
    return Outcome(kind="agreed")


def _gradients(network: Network, wrt: list[str], fed: dict[str, Any], seeds: dict[str, Any]) -> dict[str, np.ndarray]:
    """Gradients by the inputs that the operator's rule has a gradient by."""
    while True:
        try:
            backward = vjp_network(network, wrt)
            break
        except Unsupported as error:
            without = re.search(r"its rule has no gradient by the input '(\w+)'", str(error))
            if without is None or without[1] not in wrt or len(wrt) == 1:
                raise
            wrt = [name for name in wrt if name != without[1]]
    feeds = dict(fed)
    for name in backward.inputs:
        if name not in feeds:
            feeds[name] = seeds[name.partition(":")[2]]
    results = d5.framework("reference").executor(backward).inference(feeds)
    return {name: np.asarray(results[f"grad:{name}"]) for name in wrt}


def _compared(name: str, value: np.ndarray, gradient: np.ndarray, terms: Any, rng: np.random.Generator) -> str | None:
    if gradient.shape != value.shape:
        return f"the gradient of {name} has shape {gradient.shape}, expected {value.shape}"
    if np.isnan(gradient).any():
        return f"the gradient of {name} is NaN at {np.flatnonzero(np.isnan(gradient))[0]}"
    base = terms(name, value)
    loss = abs(float(base.sum()))
    places = rng.permutation(value.size)[:ELEMENTS]
    # Rounding: the loss is a sum with float64 rounding; truncation: second derivatives of some tens times the step.
    for place in places:
        got = float(gradient.ravel()[place])

        def slopes(step: float, place: int = place) -> np.ndarray:
            moved = value.copy()
            moved.flat[place] += step
            found: np.ndarray = (terms(name, moved) - base) / step
            return found

        sides = np.stack([slopes(STEP), slopes(-STEP)])
        right, left = map(float, sides.sum(axis=1))
        size = 1.0 + abs(got) + loss
        if not np.isfinite(got):
            if np.nanmax(np.abs([right, left])) < 100:
                return f"the gradient of {name} at {place} is {got}, differences give {left:.6g} and {right:.6g}"
            continue  # the end of the domain, as of Acos
        if not np.isfinite([right, left]).all() or max(abs(right), abs(left)) > 1e4 * size:
            continue  # a jump, or the end of the domain
        slack = 1e-4 * size
        low, high = float(sides.min(axis=0).sum()), float(sides.max(axis=0).sum())
        if high - low <= slack:
            low = high = (right + left) / 2
        if low - slack <= got <= high + slack:
            continue
        if high - low > slack and _near_a_kink(value, place, got, terms, name, slack):
            continue
        closer = np.stack([slopes(STEP * SMALLER), slopes(-STEP * SMALLER)])
        if _jumps(sides, closer, slack):
            continue
        allowed = f"differences give {low:.6g}" if low == high else f"not between {low:.6g} and {high:.6g}"
        return f"the gradient of {name} at {place} is {got:.6g}, {allowed}"
    return None


def _jumps(sides: np.ndarray, closer: np.ndarray, slack: float) -> bool:
    """Whether a difference of some element is about the same for a smaller step."""
    steep = np.abs(sides) > slack
    return bool((steep & (SMALLER * np.abs(closer) > np.abs(sides) / 2)).any())


def _near_a_kink(value: np.ndarray, place: int, got: float, terms: Any, name: str, slack: float) -> bool:
    """Whether a gradient at a kink is between slopes at points next to it, where ties are broken in other ways."""
    rng, found = np.random.default_rng(0), []
    for _ in range(32):
        near = value + 1e3 * STEP * rng.uniform(-1, 1, value.shape)
        moved = near.copy()
        moved.flat[place] += STEP
        found.append(float(((terms(name, moved) - terms(name, near)) / STEP).sum()))
    return min(found) - slack <= got <= max(found) + slack
