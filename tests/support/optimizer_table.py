"""Every registered optimizer: its paper in plain Python, a step worked by hand, its native twins."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.events import StepInfo
from deep5.training.datasets.uci_digits import digits

Vector = list[float]


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A framework's own optimizer with arguments with which it computes what the rule computes.

    Attributes:
        rule: Arguments of the rule.
        native: Arguments of the framework's optimizer.
        tolerance: Relative, in float64 after 200 steps; values above 1e-9 have a reason next to them.
    """

    rule: Mapping[str, Any]
    native: Mapping[str, Any]
    tolerance: float = 1e-9


def same(tolerance: float = 1e-9, **hyper: Any) -> Twin:
    """A twin that takes the rule's arguments."""
    return Twin(rule=hyper, native=hyper, tolerance=tolerance)


@dataclass(frozen=True, kw_only=True)
class Case:
    """An update rule.

    Attributes:
        rule: The class.
        hyper: Arguments that show every term of the equation within some steps.
        paper: The parameter, and what evaluation uses, after one step per gradient; plain Python.
        start: The parameter before the steps worked by hand.
        grads: Their gradients, one per step.
        hand: Their arguments.
        after: Their result, worked by hand.
        evaluated: What evaluation uses then; None: the parameter.
        twins: Native optimizers by framework.
        tuned: Arguments with which a convex problem is solved as fast as gradient descent must solve it.
        falls: Whether the rate must fall with the root of the steps, because the rule's steps do not become short.
        matrices: Hyperparameters without effect on a vector; `test_rules_of_matrices.py` tests them.
    """

    rule: Callable[..., Any]
    hyper: Mapping[str, Any]
    paper: Callable[..., tuple[Vector, Vector]]
    start: Vector
    grads: Sequence[Vector]
    hand: Mapping[str, Any]
    after: Vector
    evaluated: Vector | None = None
    twins: Mapping[str, Twin] = field(default_factory=dict)
    tuned: Mapping[str, Any]
    falls: bool = False
    matrices: tuple[str, ...] = ()


def each(update: Callable[..., Any]) -> Callable[..., tuple[Vector, Vector]]:
    """A paper's update of one element, which keeps its state in a dict, over a vector."""

    def run(w: Vector, grads: Sequence[Vector], **hyper: Any) -> tuple[Vector, Vector]:
        found = []
        for index, start in enumerate(w):
            value, memory = start, dict[str, float]()
            for t, grad in enumerate(grads, start=1):
                value = update(value, grad[index], memory, t, **hyper)
            found.append((value, memory.get("evaluated", value)))
        return [value for value, _ in found], [value for _, value in found]

    return run


@each
def sgd(w: float, g: float, s: dict[str, float], t: int, *, lr: float) -> float:
    return w - lr * g


@each
def momentum(w: float, g: float, s: dict[str, float], t: int, *, lr: float, momentum: float) -> float:
    s["v"] = momentum * s.get("v", 0.0) + g
    return w - lr * s["v"]


@each
def nesterov(w: float, g: float, s: dict[str, float], t: int, *, lr: float, momentum: float) -> float:
    """In terms of θ, whose gradient is taken at θ + μ v: equations 3 and 4 of Sutskever et al., v with their sign."""
    v = s.get("v", 0.0)
    theta = w - momentum * v
    s["v"] = momentum * v - lr * g
    return theta + s["v"] + momentum * s["v"]


@each
def adagrad(w: float, g: float, s: dict[str, float], t: int, *, lr: float, epsilon: float, initial: float) -> float:
    s["sum"] = s.get("sum", initial) + g**2
    return w - lr * g / (epsilon + math.sqrt(s["sum"]))


@each
def adadelta(w: float, g: float, s: dict[str, float], t: int, *, lr: float, rho: float, epsilon: float) -> float:
    s["g2"] = rho * s.get("g2", 0.0) + (1 - rho) * g**2
    delta = -math.sqrt(s.get("x2", 0.0) + epsilon) / math.sqrt(s["g2"] + epsilon) * g
    s["x2"] = rho * s.get("x2", 0.0) + (1 - rho) * delta**2
    return w + lr * delta


@each
def rmsprop(w: float, g: float, s: dict[str, float], t: int, *, lr: float, rho: float, epsilon: float) -> float:
    s["ms"] = rho * s.get("ms", 0.0) + (1 - rho) * g**2
    return w - lr * g / (math.sqrt(s["ms"]) + epsilon)


def moments(g: float, s: dict[str, float], beta1: float, beta2: float) -> tuple[float, float]:
    s["m"] = beta1 * s.get("m", 0.0) + (1 - beta1) * g
    s["v"] = beta2 * s.get("v", 0.0) + (1 - beta2) * g**2
    return s["m"], s["v"]


@each
def adam(
    w: float, g: float, s: dict[str, float], t: int, *, lr: float, beta1: float, beta2: float, epsilon: float
) -> float:
    m, v = moments(g, s, beta1, beta2)
    return w - lr * (m / (1 - beta1**t)) / (math.sqrt(v / (1 - beta2**t)) + epsilon)


@each
def adamw(
    w: float,
    g: float,
    s: dict[str, float],
    t: int,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> float:
    m, v = moments(g, s, beta1, beta2)
    return w - lr * ((m / (1 - beta1**t)) / (math.sqrt(v / (1 - beta2**t)) + epsilon) + weight_decay * w)


@each
def amsgrad(
    w: float,
    g: float,
    s: dict[str, float],
    t: int,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    bias_correction: bool = False,
) -> float:
    m, v = moments(g, s, beta1, beta2)
    s["max"] = max(s.get("max", 0.0), v)
    c1, c2 = (1 - beta1**t, 1 - beta2**t) if bias_correction else (1.0, 1.0)
    return w - lr * (m / c1) / (math.sqrt(s["max"] / c2) + epsilon)


@each
def nadam(
    w: float,
    g: float,
    s: dict[str, float],
    t: int,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    momentum_decay: float,
) -> float:
    def mu(step: int) -> float:
        return beta1 * (1 - 0.5 * 0.96 ** (step * momentum_decay))

    m, v = moments(g, s, beta1, beta2)
    g_hat = g / (1 - math.prod(mu(i) for i in range(1, t + 1)))
    m_hat = m / (1 - math.prod(mu(i) for i in range(1, t + 2)))
    m_bar = (1 - mu(t)) * g_hat + mu(t + 1) * m_hat
    return w - lr * m_bar / (math.sqrt(v / (1 - beta2**t)) + epsilon)


@each
def lion(
    w: float, g: float, s: dict[str, float], t: int, *, lr: float, beta1: float, beta2: float, weight_decay: float
) -> float:
    c = beta1 * s.get("m", 0.0) + (1 - beta1) * g
    s["m"] = beta2 * s.get("m", 0.0) + (1 - beta2) * g
    return w - lr * ((c > 0) - (c < 0) + weight_decay * w)


@each
def averaged_sgd(w: float, g: float, s: dict[str, float], t: int, *, lr: float, start: int) -> float:
    w -= lr * g
    s["sum"], s["count"] = (w, 1) if t <= start + 1 else (s["sum"] + w, s["count"] + 1)
    s["evaluated"] = s["sum"] / s["count"]
    return w


def norm(x: Vector) -> float:
    return math.sqrt(sum(value**2 for value in x))


def lars(
    w: Vector, grads: Sequence[Vector], *, lr: float, momentum: float, weight_decay: float, trust: float
) -> tuple[Vector, Vector]:
    v = [0.0] * len(w)
    for g in grads:
        rate = trust * norm(w) / (norm(g) + weight_decay * norm(w))
        v = [momentum * vi + rate * (gi + weight_decay * wi) for vi, gi, wi in zip(v, g, w, strict=True)]
        w = [wi - lr * vi for wi, vi in zip(w, v, strict=True)]
    return w, w


def lamb(
    w: Vector,
    grads: Sequence[Vector],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> tuple[Vector, Vector]:
    memory: list[dict[str, float]] = [{} for _ in w]
    for t, g in enumerate(grads, start=1):
        step = []
        for wi, gi, s in zip(w, g, memory, strict=True):
            m, v = moments(gi, s, beta1, beta2)
            r = (m / (1 - beta1**t)) / (math.sqrt(v / (1 - beta2**t)) + epsilon)
            step.append(r + weight_decay * wi)
        w = [wi - lr * norm(w) / norm(step) * si for wi, si in zip(w, step, strict=True)]
    return w, w


def muon(
    w: Vector,
    grads: Sequence[Vector],
    *,
    lr: float,
    adam_lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    momentum: float,
) -> tuple[Vector, Vector]:
    """A vector: AdamW's step with the rate lr * adam_lr, the decay with lr."""
    memory: list[dict[str, float]] = [{} for _ in w]
    for t, g in enumerate(grads, start=1):
        for i, s in enumerate(memory):
            m, v = moments(g[i], s, beta1, beta2)
            step = (m / (1 - beta1**t)) / (math.sqrt(v / (1 - beta2**t)) + epsilon)
            w = [*w[:i], w[i] - lr * weight_decay * w[i] - lr * adam_lr * step, *w[i + 1 :]]
    return w, w


def adafactor(
    w: Vector, grads: Sequence[Vector], *, lr: float, decay: float, epsilon1: float, epsilon2: float, clip: float
) -> tuple[Vector, Vector]:
    """Algorithm 5, for vectors."""
    v = [0.0] * len(w)
    for t, g in enumerate(grads, start=1):
        beta, rho = 1 - t**-decay, min(lr, 1 / math.sqrt(t))
        v = [beta * vi + (1 - beta) * (gi**2 + epsilon1) for vi, gi in zip(v, g, strict=True)]
        u = [gi / math.sqrt(vi) for vi, gi in zip(v, g, strict=True)]
        root = math.sqrt(len(w))
        alpha = max(epsilon2, norm(w) / root) * rho / max(1.0, norm(u) / root / clip)
        w = [wi - alpha * ui for wi, ui in zip(w, u, strict=True)]
    return w, w


def shampoo(w: Vector, grads: Sequence[Vector], *, lr: float, epsilon: float) -> tuple[Vector, Vector]:
    """Algorithm 2 with one axis: the inverse root of the sum of outer products."""
    h = epsilon * np.eye(len(w))
    for g in grads:
        h = h + np.outer(g, g)
        values, vectors = np.linalg.eigh(h)
        w = (w - lr * (vectors * values**-0.5 @ vectors.T) @ g).tolist()
    return w, w


def accelegrad(
    w: Vector, grads: Sequence[Vector], *, lr: float, diameter: float, gradient_bound: float
) -> tuple[Vector, Vector]:
    y, z, squares, weights, weighted = w, w, 0.0, 0.0, [0.0] * len(w)
    for t, g in enumerate(grads):
        alpha = 1.0 if t <= 2 else (t + 1) / 4
        squares += alpha**2 * norm(g) ** 2
        eta = lr * 2 * diameter / math.sqrt(gradient_bound**2 + squares)
        x = [zi / alpha + (1 - 1 / alpha) * yi for zi, yi in zip(z, y, strict=True)]
        z = [zi - alpha * eta * gi for zi, gi in zip(z, g, strict=True)]
        y = [xi - eta * gi for xi, gi in zip(x, g, strict=True)]
        weights += alpha
        weighted = [total + alpha * yi for total, yi in zip(weighted, y, strict=True)]
    return y, [total / weights for total in weighted]


# Keras stores the learning rate, and reads its betas, in float32: these are exact there.
LR, BETAS = 2.0**-8, {"beta1": 0.875, "beta2": 1 - 2.0**-10}
# If a framework adds epsilon at another place, it is made negligible next to every root that is not zero.
GONE = 1e-30
SEEN = {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "epsilon": 0.1}
EXACT = {"lr": 0.5, "beta1": 0.5, "beta2": 0.75, "epsilon": 0.5}

CASES: dict[str, Case] = {
    "sgd": Case(
        rule=d5.SGD,
        hyper={"lr": 0.1},
        paper=sgd,
        start=[1.0],
        grads=[[0.5]],
        hand={"lr": 0.5},
        after=[0.75],
        twins=dict.fromkeys(("pytorch", "tensorflow", "jax"), same(lr=2.0**-5)),
        tuned={"lr": 0.5},
    ),
    "momentum": Case(
        rule=d5.Momentum,
        hyper={"lr": 0.1, "momentum": 0.9},
        paper=momentum,
        start=[1.0],
        grads=[[0.5], [1.0]],
        hand={"lr": 0.5, "momentum": 0.5},
        after=[0.125],  # v = 0.5, w = 0.75; v = 1.25
        twins=dict.fromkeys(("pytorch", "tensorflow", "jax"), same(lr=2.0**-6, momentum=0.875)),
        tuned={"lr": 0.2, "momentum": 0.5},
    ),
    "nesterov": Case(
        rule=d5.Nesterov,
        hyper={"lr": 0.1, "momentum": 0.9},
        paper=nesterov,
        start=[1.0],
        grads=[[0.5], [1.0]],
        hand={"lr": 0.5, "momentum": 0.5},
        after=[-0.1875],  # v = 0.5, w = 1 - 0.5 * 0.75; v = 1.25, w = 0.625 - 0.5 * 1.625
        twins=dict.fromkeys(("pytorch", "tensorflow", "jax"), same(lr=2.0**-6, momentum=0.875)),
        tuned={"lr": 0.2, "momentum": 0.5},
    ),
    "adagrad": Case(
        rule=d5.AdaGrad,
        hyper={"lr": 0.1, "epsilon": 0.2, "initial": 0.3},
        paper=adagrad,
        start=[1.0],
        grads=[[1.5], [2.0]],
        hand={"lr": 0.5, "epsilon": 0.5, "initial": 0.0},
        after=[0.625 - 1 / 3],  # s = 2.25, 1 - 0.75 / 2; s = 6.25, - 1 / 3
        twins={
            "pytorch": same(lr=LR, epsilon=1e-3, initial=0.0),
            # Both have epsilon inside the root.
            **dict.fromkeys(("tensorflow", "jax"), same(lr=LR, epsilon=GONE, initial=0.125)),
        },
        tuned={"lr": 1.0},
    ),
    "adadelta": Case(
        rule=d5.AdaDelta,
        hyper={"lr": 0.9, "rho": 0.8, "epsilon": 0.1},
        paper=adadelta,
        start=[1.0],
        grads=[[0.75]],
        hand={"lr": 0.5, "rho": 0.75, "epsilon": 0.25},
        after=[0.7],  # roots 0.5 and 0.5 * 1.25, so a step of 0.6
        twins=dict.fromkeys(("pytorch", "tensorflow", "jax"), same(lr=0.5, rho=0.875, epsilon=1e-6)),
        tuned={"lr": 1.0, "epsilon": 1e-2},
    ),
    "rmsprop": Case(
        rule=d5.RMSProp,
        hyper={"lr": 0.05, "rho": 0.8, "epsilon": 0.1},
        paper=rmsprop,
        start=[1.0],
        grads=[[2.0]],
        hand={"lr": 0.5, "rho": 0.75, "epsilon": 0.5},
        after=[1 / 3],  # s = 1
        twins={
            **dict.fromkeys(("pytorch", "jax"), same(lr=2.0**-10, rho=0.875, epsilon=1e-6)),
            "tensorflow": same(lr=2.0**-10, rho=0.875, epsilon=GONE),  # inside the root
        },
        tuned={"lr": 0.3},
        falls=True,
    ),
    "adam": Case(
        rule=d5.Adam,
        hyper=SEEN,
        paper=adam,
        start=[1.0],
        grads=[[1.5]],
        hand=EXACT,
        after=[0.625],  # m̂ = 1.5, v̂ = 1.5²
        twins={
            **dict.fromkeys(("pytorch", "jax"), same(lr=LR, **BETAS, epsilon=1e-6)),
            "tensorflow": same(lr=LR, **BETAS, epsilon=GONE),  # added to a root that is not corrected
        },
        tuned={"lr": 0.3},
        falls=True,
    ),
    "adamw": Case(
        rule=d5.AdamW,
        hyper={**SEEN, "weight_decay": 0.3},
        paper=adamw,
        start=[1.0],
        grads=[[1.5]],
        hand={**EXACT, "weight_decay": 0.25},
        after=[0.5],  # as Adam, less 0.5 * 0.25
        twins={
            **dict.fromkeys(("pytorch", "jax"), same(lr=LR, **BETAS, epsilon=1e-6, weight_decay=0.125)),
            "tensorflow": same(lr=LR, **BETAS, epsilon=GONE, weight_decay=0.125),
        },
        tuned={"lr": 0.3, "weight_decay": 0.0},
        falls=True,
    ),
    "amsgrad": Case(
        rule=d5.AMSGrad,
        hyper=SEEN,
        paper=amsgrad,
        start=[1.0],
        grads=[[1.5], [0.0]],
        hand={**EXACT, "epsilon": 0.25},
        after=[0.4375],  # m = 0.75, s = 0.75², 1 - 0.5 * 0.75; m = 0.375 and s as it was, - 0.5 * 0.375
        twins={
            "pytorch": Twin(
                rule={"lr": LR, **BETAS, "epsilon": 1e-6, "bias_correction": True},
                native={"lr": LR, **BETAS, "epsilon": 1e-6},
            ),
            "tensorflow": Twin(
                rule={"lr": LR, **BETAS, "epsilon": GONE, "bias_correction": True},
                native={"lr": LR, **BETAS, "epsilon": GONE},
            ),
            # Without the correction the first steps are several times as long.
            "jax": same(lr=2.0**-11, **BETAS, epsilon=1e-6),
        },
        tuned={"lr": 0.3},
        falls=True,
    ),
    "nadam": Case(
        rule=d5.Nadam,
        hyper={**SEEN, "momentum_decay": 3.0},
        paper=nadam,
        start=[1.0],
        grads=[[1.5]],
        # μ = 0.25 at every step: m̄ = 0.75 g / 0.75 + 0.25 * 0.5 g / 0.9375 = 1.7
        hand={**EXACT, "momentum_decay": 0.0},
        after=[0.575],
        twins={
            # torch keeps the product of its μ in float32.
            "pytorch": same(1e-6, lr=LR, **BETAS, epsilon=1e-6, momentum_decay=0.5),
            # Keras reads its 0.96 in float32.
            "tensorflow": Twin(
                rule={"lr": LR, **BETAS, "epsilon": 1e-6, "momentum_decay": 1.0},
                native={"lr": LR, **BETAS, "epsilon": 1e-6},
                tolerance=1e-6,
            ),
            "jax": Twin(
                rule={"lr": LR, **BETAS, "epsilon": 1e-6, "momentum_decay": 1e9},
                native={"lr": LR, **BETAS, "epsilon": 1e-6},
            ),
        },
        tuned={"lr": 0.3},
        falls=True,
    ),
    "lars": Case(
        rule=d5.LARS,
        hyper={"lr": 0.5, "momentum": 0.9, "weight_decay": 0.01, "trust": 0.02},
        paper=lars,
        start=[3.0, 4.0],
        grads=[[0.6, 0.8]],
        hand={"lr": 0.5, "momentum": 0.5, "weight_decay": 0.5, "trust": 0.7},
        after=[1.95, 2.6],  # λ = 0.7 * 5 / (1 + 2.5), so half of (2.1, 2.8)
        # Optax takes the norm of g + β w below, the paper the sum of norms.
        twins={"jax": same(lr=0.5, momentum=0.875, weight_decay=0.0, trust=0.01)},
        tuned={"lr": 0.5, "trust": 0.2, "weight_decay": 0.0, "momentum": 0.5},
        falls=True,
    ),
    "lamb": Case(
        rule=d5.LAMB,
        hyper={**SEEN, "weight_decay": 0.3},
        paper=lamb,
        start=[3.0, 4.0],
        grads=[[0.75, 2.0]],
        hand={**EXACT, "weight_decay": 0.0},
        after=[1.5, 2.0],  # r = (0.6, 0.8) of length 1, w of length 5
        twins={
            # Keras's weight decay is a different one.
            "tensorflow": Twin(
                rule={"lr": LR, **BETAS, "epsilon": 1e-6, "weight_decay": 0.0},
                native={"lr": LR, **BETAS, "epsilon": 1e-6},
            ),
            "jax": same(lr=LR, **BETAS, epsilon=1e-6, weight_decay=0.125),
        },
        tuned={"lr": 0.2, "weight_decay": 0.0},
        falls=True,
    ),
    "lion": Case(
        rule=d5.Lion,
        hyper={"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.3},
        paper=lion,
        start=[1.0],
        grads=[[-2.0], [0.25]],
        hand={"lr": 0.25, "beta1": 0.5, "beta2": 0.75, "weight_decay": 0.5},
        after=[1.234375],  # c = -1, w = 1.125, m = -0.5; c = -0.125, w = 1.125 - 0.25 * (-1 + 0.5625)
        twins=dict.fromkeys(
            ("tensorflow", "jax"), same(lr=2.0**-10, beta1=0.875, beta2=1 - 2.0**-6, weight_decay=0.125)
        ),
        tuned={"lr": 0.3},
        falls=True,
    ),
    "muon": Case(
        rule=d5.Muon,
        hyper={**SEEN, "adam_lr": 0.5, "weight_decay": 0.3, "momentum": 0.9},
        paper=muon,
        start=[1.0],
        grads=[[1.5]],
        hand={**EXACT, "adam_lr": 0.5, "weight_decay": 0.25},
        after=[0.6875],  # m̂ = 1.5, v̂ = 1.5², 1 - 0.5 * 0.25 - 0.25 * 0.75
        tuned={"lr": 6.0, "weight_decay": 0.0},
        falls=True,
        matrices=("momentum",),
    ),
    "adafactor": Case(
        rule=d5.Adafactor,
        hyper={"lr": 0.05, "decay": 0.8, "epsilon1": 0.1, "epsilon2": 3.0, "clip": 0.3},
        paper=adafactor,
        start=[2.0],
        grads=[[1.5]],
        hand={"lr": 0.25, "decay": 0.5, "epsilon1": 1.75, "epsilon2": 0.5, "clip": 0.5},
        after=[1.75],  # v = 4, u = 0.75, divided by 1.5; a rate of 2 * 0.25
        tuned={"lr": 0.3},
        falls=True,
    ),
    "shampoo": Case(
        rule=d5.Shampoo,
        hyper={"lr": 0.1, "epsilon": 0.5},
        paper=shampoo,
        start=[1.0],
        grads=[[1.5]],
        hand={"lr": 0.5, "epsilon": 1.75},
        after=[0.625],  # h = 4, its inverse root 0.5
        tuned={"lr": 1.0},
    ),
    "averaged_sgd": Case(
        rule=d5.AveragedSGD,
        hyper={"lr": 0.1, "start": 1},
        paper=averaged_sgd,
        start=[1.0],
        grads=[[1.0], [1.0], [-2.0]],
        hand={"lr": 0.5, "start": 0},
        after=[1.0],  # 0.5, 0, 1
        evaluated=[0.5],
        # torch keeps the shares of its average in float32.
        twins={"pytorch": same(1e-6, lr=2.0**-5, start=20)},
        tuned={"lr": 0.5, "start": 100},
    ),
    "accelegrad": Case(
        rule=d5.AcceleGrad,
        hyper={"lr": 0.5, "diameter": 2.0, "gradient_bound": 3.0},
        paper=accelegrad,
        start=[1.0],
        grads=[[4.0]],
        hand={"lr": 0.5, "diameter": 1.0, "gradient_bound": 3.0},
        after=[0.2],  # η = 0.5 * 2 / 5
        evaluated=[0.2],
        tuned={"lr": 1.0, "diameter": 5.0},
    ),
}
"""Every registered update rule by its name; a test keeps this table and the registry equal."""

STEP_OPTIMIZERS = ("lbfgs", "sag")
"""Registered optimizers that own their step; `test_step_optimizers.py` tests them."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """For a module that imports it: torch's threads wait for each other in a loop, and small networks need only one."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def info(step: int, size: int = 1) -> StepInfo:
    return StepInfo(step=step, batch_size=size)


@functools.cache
def _images() -> Any:
    return digits().train


def network(dtype: str = "float64", hidden: int = 16) -> d5.Network:
    """A smooth network for the digits."""
    return d5.networks.mlp(features=784, hidden=hidden, classes=10, dtype=dtype)


def batch(step: int, dtype: str = "float64", size: int = 16, *, flat: bool = True) -> dict[str, Any]:
    """Digits for a step, the same for every caller."""
    ids = np.random.default_rng(step).integers(0, len(_images()), size)
    found = _images().batch(ids)
    image = found["input"].astype(dtype)
    return {"input": image.reshape(size, -1) if flat else image, "label": found["label"]}


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The largest relative distance between two sets of parameters."""
    assert one.keys() == other.keys()
    return max(
        float(np.linalg.norm(np.asarray(one[key], np.float64) - other[key]) / (np.linalg.norm(other[key]) or 1.0))
        for key in one
    )
