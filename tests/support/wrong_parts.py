"""Wrong back-ends, operators, rules, schemes and communicators, drawn by a seed: a trigger, a fault and a target each.

Each is a right part whose result is wrong only where the trigger fires: at one size, in one element type, in one layout
in memory, from the second call on, after an exception, on a second thread. The shipped suites must reject each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import deep5 as d5
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.core.tensors import to_numpy
from deep5.distributed.check_scheme import check_scheme
from deep5.distributed.communicators.check import check_communicator
from deep5.distributed.communicators.threads import ThreadCommunicator, run_in_threads
from deep5.networks.judge import ConformanceError
from deep5.training.check import check_optimizer
from deep5.training.expression import Expr

__all__ = ["REJECTIONS", "TARGETS", "Mutant", "check_right", "drawn"]

SIZES = (1, 2, 3, 17, 64, 16_385)
REJECTIONS = (d5.Deep5Error, ConformanceError)


class Trigger:
    """Decides at each call whether the fault happens; belongs to one object.

    Args:
        kind: Its name.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.failed = False
        self.options = ""
        self._calls: dict[str, int] = {}
        self._thread = threading.get_ident()
        self._sizes: set[int] = set()

    def fires(self, method: str, arrays: Sequence[Any], size: int | None = None) -> bool:
        """Count a call of a method with some arrays; `size` is its batch size, if not the first array's length."""
        self._calls[method] = self._calls.get(method, 0) + 1
        name, _, value = self.kind.partition(" ")
        found = [each for each in arrays if isinstance(each, np.ndarray)]
        floats = [each for each in found if each.dtype.kind == "f" and each.size]
        if size is None and found and found[0].ndim:
            size = len(found[0])
        if name == "size":
            self._sizes.add(size or 0)
            return size == int(value) or (int(value) > 1000 and (size or 0) > 16_384)
        if name == "multiple":
            return bool(size) and (size or 0) % int(value) == 0
        if name == "nan":
            return any(bool(np.isnan(each).any()) for each in floats)
        if name == "infinite":
            return any(bool(np.isinf(each).any()) for each in floats)
        if name == "axes":
            return any(each.ndim == int(value) for each in found[:1])
        if name == "square":
            return any(each.ndim == 3 and each.shape[0] == each.shape[1] > 1 for each in found[:1])
        if name == "options":  # of a call: those that the damage was given
            return self.options == value
        if name == "sequence":  # another size than in an earlier call
            self._sizes.add(size or 0)
            return len(self._sizes) > 1
        if name == "dtype":
            return any(str(each.dtype) == value for each in found)
        if name == "layout":
            return any(each.size > 1 and not each.flags.c_contiguous for each in found)
        if name == "call":
            return self._calls[method] == 2
        if name == "later":
            return self._calls[method] > 3
        if name == "exception":
            return self.failed
        if name == "thread":
            return threading.get_ident() != self._thread
        if name == "zeros":
            return any(not each.any() for each in floats)
        if name == "ties":
            return any(each.size > 3 and len(np.unique(each)) < each.size // 2 for each in floats)
        if name == "large":
            return any(np.abs(each).max() > 1e3 for each in floats)
        if name == "multiple":
            return any(each.ndim > 0 and each.size > 0 and each.shape[-1] % int(value) == 0 for each in found)
        if name == "negative":
            return any(each.size > 1 and (each < 0).all() for each in floats)
        if name == "sorted":
            return any(each.size > 5 and (np.diff(each.reshape(-1)) > 0).all() for each in floats)
        if name == "read-only":
            return any(not each.flags.writeable for each in found)
        if name == "small":
            return any(0 < np.abs(each).max() < 1e-2 for each in floats)
        return name == "always"


def wrong(fault: str, value: Any, earlier: Any, rng: np.random.Generator) -> Any:
    """A wrong copy of an array.

    Args:
        fault: Name of the fault.
        value: The right array.
        earlier: The method's previous right result; None if there was none.
        rng: Draws the element.
    """
    value = np.array(to_numpy(value))
    if fault == "scaled" or (fault == "axes" and not value.ndim):
        return (value * value.dtype.type(1.1)).astype(value.dtype) + (value.dtype.kind in "iu")
    if fault == "one element" and value.size:
        place = int(rng.integers(value.size))
        value.reshape(-1)[place] += value.dtype.type(1)
        return value
    if fault == "stale" and earlier is not None:
        return np.array(earlier)
    if fault == "zero":
        return np.zeros_like(value)
    if fault == "shape":
        return value[None]
    if fault == "dtype":
        return value.astype(np.float32 if value.dtype != np.float32 else np.float64)
    if fault == "axes":
        return np.ascontiguousarray(value.T) if value.ndim > 1 else value[::-1].copy()
    return value


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A wrong part.

    Attributes:
        target: A key of `TARGETS`.
        method: What is wrong of it.
        trigger: When.
        fault: How.
        seed: Of the element that is wrong.
    """

    target: str
    method: str
    trigger: str
    fault: str
    seed: int

    def __str__(self) -> str:
        return f"{self.target}-{self.method}-{self.trigger}-{self.fault}".replace(" ", "_")

    def check(self) -> None:
        """Run the conformance suite on it; raises if it is caught."""
        TARGETS[self.target].check(self)


class Damage:
    """The state of one wrong object: its trigger, and the earlier results."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant, self.trigger = mutant, Trigger(mutant.trigger)
        self._earlier: dict[Any, np.ndarray] = {}
        self._rng = np.random.default_rng(mutant.seed)

    def call(
        self,
        method: str,
        call: Callable[[], Any],
        arrays: Sequence[Any],
        size: int | None = None,
        *,
        here: bool = False,
    ) -> Any:
        """The result of a right call, damaged where the trigger fires, or `here`."""
        fires = (self.trigger.fires(method, arrays, size) or here) and method == self.mutant.method
        try:
            made = call()
        except Exception:
            self.trigger.failed = True
            raise
        if fires and self.mutant.fault == "input":
            for each in arrays:
                if isinstance(each, np.ndarray) and each.dtype.kind == "f" and each.flags.writeable:
                    np.multiply(each, each.dtype.type(1.01), out=each)
                    break
            return made
        if method != self.mutant.method:
            return made
        return self.damaged(made, fires)

    def damaged(self, made: Any, fires: bool) -> Any:
        """A result (an array, or arrays in a tuple or by name), of which one array is wrong if `fires`."""
        if isinstance(made, Mapping):
            floats = [name for name, value in made.items() if np.asarray(to_numpy(value)).dtype.kind == "f"]
            if not floats:
                return made
            key = floats[self.mutant.seed % len(floats)]
            return {**made, key: self._one(key, made[key], fires)}
        if isinstance(made, tuple):
            places = [place for place, value in enumerate(made) if value is not None]
            if not places:
                return made
            key = places[self.mutant.seed % len(places)]
            return tuple(self._one(key, value, fires) if place == key else value for place, value in enumerate(made))
        return self._one("", made, fires)

    def _one(self, key: Any, value: Any, fires: bool) -> Any:
        earlier = self._earlier.get(key)
        self._earlier[key] = np.array(to_numpy(value))
        return wrong(self.mutant.fault, value, earlier, self._rng) if fires else value


# --- back-ends ---


class WrongExecutor:
    """The reference's executor, of which one method is wrong."""

    def __init__(self, network: Any, mutant: Mutant) -> None:
        self.inner: Any = d5.framework("reference").executor(network)
        self.network, self.device, self.capabilities = network, self.inner.device, self.inner.capabilities
        self.damage, self._size = Damage(mutant), 0
        self._dtype = [np.zeros(0, self.inner.settings()["dtype"])] if network.parameter_specs else []
        for name in vars(GraphExecutor):
            if not name.startswith("_") and not hasattr(self, name):
                setattr(self, name, getattr(self.inner, name))

    def _fed(self, method: str, inputs: Any, call: Callable[[], Any]) -> Any:
        arrays = list(inputs.values()) if isinstance(inputs, Mapping) else []
        self._size = len(arrays[0]) if arrays and getattr(arrays[0], "ndim", 0) else 0
        return self.damage.call(method, call, [*arrays, *self._dtype], self._size)

    def _options(self, keywords: Mapping[str, Any], loss: str = "loss") -> None:
        """Name what is special about a call, for the trigger."""
        info = keywords.get("info")
        found = {
            "wrt": bool(keywords.get("wrt")),
            "accumulate": bool(keywords.get("accumulate")),
            "scale": keywords.get("loss_scale", 1.0) != 1.0,
            "watched": keywords.get("on_gradient") is not None,
            "second": loss == "second",
            "late": info is not None and info.step > 10,
        }
        self.damage.trigger.options = " ".join(name for name, given in found.items() if given)

    def inference(self, inputs: Any, **keywords: Any) -> Any:
        self._options(keywords)
        return self._fed("inference", inputs, lambda: self.inner.inference(inputs, **keywords))

    def inference_and_backprop(self, inputs: Any, loss: str = "loss", **keywords: Any) -> Any:
        run = self.inner.inference_and_backprop
        self._options(keywords, loss)
        return self._fed("backprop", inputs, lambda: run(inputs, loss, **keywords))

    def gradients(self) -> Any:
        return self.damage.call("gradients", self.inner.gradients, self._dtype, self._size)

    def state_dict(self) -> Any:
        return self.damage.call("state_dict", self.inner.state_dict, self._dtype, self._size)

    def parameters(self) -> Any:
        return self.damage.call("parameters", self.inner.parameters, self._dtype, self._size)

    def load_state_dict(self, state: Any) -> None:
        self._changes("load_state_dict", lambda: self.inner.load_state_dict(state))

    def write(self, names: Any, packed: Any) -> None:
        self._changes("write", lambda: self.inner.write(names, packed))

    def read(self, names: Any, out: Any) -> None:
        def call() -> Any:
            self.inner.read(names, out)
            return out.copy()

        made = self.damage.call("read", call, self._dtype, self._size)
        if self.damage.mutant.method == "read" and made.shape == out.shape:
            out[...] = made

    def export(self, **keywords: Any) -> Any:
        def call() -> Any:
            return self.inner.export(**keywords)

        def values() -> Any:
            exported = call()
            return {name: exported.initial(name) for name in self.inner.state_dict()}

        if self.damage.mutant.method != "export":
            return call()
        return call().with_values(self.damage.call("export", values, self._dtype, self._size))

    def _changes(self, method: str, call: Callable[[], Any]) -> None:
        """A call that changes parameters, after which one of them is wrong."""

        def changed() -> Any:
            call()
            return self.inner.state_dict()

        made = self.damage.call(method, changed, self._dtype, self._size)
        if self.damage.mutant.method == method:
            self.inner.load_state_dict(made)

    def train_step(self, rule: Any, loss: str = "loss", **keywords: Any) -> Any:
        given = [name for name in ("groups", "modifier", "pipeline") if keywords.get(name)]
        try:
            return WrongStep(self, self.inner.train_step(rule, loss, **keywords), " ".join(given))
        except Exception:
            self.damage.trigger.failed = True
            raise


class WrongStep:
    def __init__(self, executor: WrongExecutor, step: Any, options: str = "") -> None:
        self._executor, self._step, self._options = executor, step, options

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def __call__(self, inputs: Any, info: Any) -> Any:
        executor, kept = self._executor, {}

        def call() -> Any:
            kept.update(self._step(inputs, info))
            return executor.inner.state_dict()

        method = executor.damage.mutant.method
        executor.damage.trigger.options = self._options or ("late" if info.step > 12 else "")
        if method == "step_outputs":
            return executor._fed(method, inputs, lambda: self._step(inputs, info))
        made = executor._fed("step", inputs, call)
        if method == "step":
            executor.inner.load_state_dict(made)
        return kept or made

    def apply(self, gradients: Any, info: Any) -> None:
        self._executor._changes("apply", lambda: self._step.apply(gradients, info))


class WrongBack(Framework):
    name = "wrong"

    def __init__(self, mutant: Mutant) -> None:
        super().__init__()
        self.mutant = mutant

    def version(self) -> str:
        return "0"

    def executor(self, network: Any, *, device: Any = "cpu", seed: int = 0) -> Any:
        return WrongExecutor(network, self.mutant)

    def supports(self, node: Any) -> Any:
        return d5.Support(True)

    def operator(self, operator: Any) -> Any:
        return operator.forward

    def set_threads(self, threads: int) -> None:
        d5.framework("reference").set_threads(threads)


def _check_executor(mutant: Mutant) -> None:
    d5.check_executor(WrongBack(mutant))


# --- operators ---


class WrongOperator(d5.Operator):
    """x tanh(w) and the sums of its rows, for x of shape (n, m) and w of shape (m,)."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant, self.damage = mutant, Damage(mutant)

    def __deepcopy__(self, memo: Any) -> WrongOperator:
        return WrongOperator(self.mutant)

    def specs(self, x: d5.TensorSpec, w: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        if len(x.shape) != 2 or w.shape != x.shape[1:] or x.dtype != w.dtype:
            raise d5.ShapeError(f"got {x} and {w}; allowed: (n, m) and (m,) of one type")
        made = x, d5.TensorSpec(shape=x.shape[:1], dtype=x.dtype)
        if self.mutant.method == "specs" and self.damage.trigger.fires("specs", (), int(x.shape[0])):
            return d5.TensorSpec(shape=x.shape[::-1], dtype=x.dtype), made[1]
        return made

    def forward(self, x: Any, w: Any) -> Any:
        def call() -> Any:
            xp = d5.array_namespace(x, w)
            made = x * xp.tanh(w)
            return made, xp.sum(made, axis=1)

        return self._damaged("forward", call, (x, w))

    def _damaged(self, method: str, call: Callable[[], Any], arrays: Sequence[Any]) -> Any:
        # Under `array_api_strict` it is right: a wrong NumPy array there would be refused for its class.
        plain = all(isinstance(each, (np.ndarray, np.generic)) for each in arrays if hasattr(each, "dtype"))
        return self.damage.call(method, call, arrays) if plain else call()

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        def call() -> Any:
            xp, (x, w) = d5.array_namespace(inputs[0]), inputs
            grad = output_grads[0] + xp.expand_dims(output_grads[1], axis=1)
            slope = xp.tanh(w)
            return (
                grad * slope if needs[0] else None,
                xp.sum(grad * x, axis=0) * (1 - slope * slope) if needs[1] else None,
            )

        return self._damaged("backward", call, (*inputs, *(each for each in output_grads if each is not None)))


def _reference(x: Any, w: Any) -> Any:
    made = x * np.tanh(w)
    return made, made.sum(axis=1)


def _check_operator(mutant: Mutant) -> None:
    inputs = [np.random.default_rng(1).standard_normal(shape).astype(np.float32) for shape in ((5, 4), (4,))]
    d5.check_forward(WrongOperator(mutant), inputs, reference=_reference, dtypes=["float32", "float64"])
    d5.check_gradient(WrongOperator(mutant), inputs, dtypes=["float32", "float64"])


# --- update rules ---


class WrongRule(d5.UpdateRule):
    """Momentum with an average for evaluation."""

    hyper = ("lr", "momentum")

    def __init__(self, lr: float = 0.1, momentum: float = 0.9) -> None:
        self.lr, self.momentum = lr, momentum

    def _damage(self, method: str, call: Callable[[], Any], arrays: Sequence[Any]) -> Any:
        damage: Damage = type(self).damage  # type: ignore[attr-defined]
        traced = any(isinstance(each, Expr) for each in arrays)
        plain = [] if traced else [np.asarray(each) for each in arrays]
        size = int(plain[0].size) if plain else None
        fires = damage.trigger.fires(method, plain, size) or (damage.mutant.trigger == "traced" and traced)
        try:
            made = call()
        except Exception:
            damage.trigger.failed = True
            raise
        if not fires or method != damage.mutant.method:
            return made
        fault = damage.mutant.fault
        change = {
            "scaled": lambda value: value * 1.1,
            "zero": lambda value: value * 0.0,
            "shifted": lambda value: value + 0.5,
        }
        if isinstance(made, tuple):
            return change[fault](made[0]), made[1]
        if isinstance(made, dict):
            return {key: change[fault](value) for key, value in made.items()}
        return change[fault](made)

    def init_state(self, param: Any) -> Any:
        return self._damage("init_state", lambda: {"v": param * 0.5}, (param,))

    def prepare_param(self, param: Any, state: Any) -> Any:
        return self._damage("prepare_param", lambda: param - 0.1 * state["v"], (param,))

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        def call() -> Any:
            velocity = self.momentum * state["v"] + grad
            return param - self.lr * velocity, {"v": velocity}

        return self._damage("update_rule", call, (param, grad))

    def eval_param(self, param: Any, state: Any) -> Any:
        return self._damage("eval_param", lambda: param - 0.25 * state["v"], (param,))


def _check_rule(mutant: Mutant) -> None:
    check_optimizer(type("Wrong", (WrongRule,), {"damage": Damage(mutant)})())


# --- schemes ---


class WrongScheme(d5.DistributedOptimizer):
    """The mean of the gradients of all samples, applied on every rank."""

    consistent = True

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(verify_every=0)
        self._mutant = mutant

    alone = False  # the step below runs with one rank, too

    def _prepare(self) -> None:
        self._damage = Damage(self._mutant)
        self._damage.trigger._thread = threading.get_ident()

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        damage, mutant = self._damage, self._mutant
        arrays = list(inputs.values())
        kind, _, value = mutant.trigger.partition(" ")
        here = (kind == "rank" and self.communicator.rank == int(value) and self.communicator.size > 1) or (
            kind == "ranks" and self.communicator.size == int(value)
        )
        if kind == "empty":
            here = info.batch_size == 0
        if kind == "late":
            here = info.step >= 12
        if kind == "epoch":
            here = info.epoch == int(value)

        def damaged(method: str, call: Callable[[], Any]) -> Any:
            return damage.call(method, call, arrays, info.global_batch_size if kind == "size" else None, here=here)

        outputs = damaged("outputs", lambda: dict(self.backprop(inputs, info)))
        mean = damaged("mean", lambda: dict(self.mean(self.gradients(), info)))
        self.apply(mean, info)
        return outputs


def _check_scheme(mutant: Mutant) -> None:
    check_scheme(WrongScheme(mutant), **({"ranks": (4,)} if mutant.trigger == "ranks 4" else {}))


# --- communicators ---

_MESSAGES = ("receive", "exchange")
_OUT = {
    "all_reduce": 0,
    "broadcast": 0,
    "reduce": 0,
    "all_gather": 1,
    "reduce_scatter": 1,
    "gather": 1,
    "scatter": 1,
    "all_to_all": 1,
    "receive": 0,
    "exchange": 1,
}


def _communicator(mutant: Mutant) -> type[ThreadCommunicator]:
    class Wrong(ThreadCommunicator):
        is_part = False

        def split(self, color: int, *, key: int | None = None) -> ThreadCommunicator:
            part = super().split(color, key=key)
            if mutant.trigger != "part":
                return part
            made = Wrong(part.rank, part._group)
            made.is_part = True
            return made

    def blocking(name: str) -> Any:
        place, right = _OUT[name], getattr(ThreadCommunicator, name)

        def method(self: Any, *given: Any, **named: Any) -> None:
            damage = vars(self).setdefault("_damage", Damage(mutant))
            target = given[place] if len(given) > place else None
            if not isinstance(target, np.ndarray) or not target.size:
                return right(self, *given, **named)
            trigger, value = damage.trigger, mutant.trigger.partition(" ")[2]
            kind = mutant.trigger.partition(" ")[0]
            # The size of one rank's part.
            part = target.size // (self.size if name in ("all_gather", "gather", "all_to_all") else 1)
            size = part // max(1, len(target)) if name == "exchange" and target.ndim > 1 else part
            here = trigger.fires(name, [target], size)
            here |= kind == "rank" and self.rank == int(value)
            here |= kind == "op" and named.get("op") == value
            here |= kind == "root" and named.get("root", 0) == int(value)
            here |= kind == "root+op" and f"{named.get('root', 0)} {named.get('op', 'sum')}" == value
            here |= kind == "part" and self.is_part
            try:
                right(self, *given, **named)
            except Exception:
                trigger.failed = True
                trigger._calls[name] -= 1  # a refused call has no result that may be wrong
                raise
            kept = name, target.shape, str(target.dtype)
            earlier = damage._earlier.get(kept)
            damage._earlier[kept] = target.copy()
            if here and target.size and target.flags.writeable:
                made = wrong(mutant.fault, target, earlier, damage._rng)
                if made.shape == target.shape and made.dtype == target.dtype:
                    target[...] = made
            return None

        return method

    setattr(Wrong, mutant.method, blocking(mutant.method))
    return Wrong


def _check_communicator(mutant: Mutant) -> None:
    kind = _communicator(mutant)
    run_in_threads(3, lambda communicator: check_communicator(kind(communicator.rank, communicator._group)))


@dataclass(frozen=True, kw_only=True)
class Target:
    """What may be wrong of a part.

    Attributes:
        check: Runs the conformance suite.
        methods: Method to the triggers that it knows, in addition to `triggers`, and to its faults.
        triggers: Triggers of all methods.
    """

    check: Callable[[Mutant], None]
    methods: Mapping[str, tuple[Sequence[str], Sequence[str]]]
    triggers: Sequence[str]


_BATCHES = tuple(f"size {size}" for size in SIZES)
_VALUES = ("zeros", "ties", "large", "small")
_FAULTS = ("scaled", "one element", "stale", "zero", "shape", "dtype", "axes")
_CHANGES = ("scaled", "one element", "stale", "zero")
_FED = (*_BATCHES, "layout", "sequence", "multiple 8", "nan", "infinite")
# Options of a call, in the order of `WrongExecutor._options`; of a step, in that of its arguments.
_CALLED = tuple(
    f"options {each}"
    for each in (
        "wrt",
        "accumulate",
        "scale",
        "scale watched",
        "accumulate scale",
        "wrt scale",
        "second",
        "scale second",
    )
)
_STEPPED = tuple(f"options {each}" for each in ("groups", "modifier", "pipeline", "groups modifier pipeline"))

TARGETS: Mapping[str, Target] = {
    "executor": Target(
        check=_check_executor,
        triggers=("dtype float32", "dtype float64", "call", "later", "exception", "thread"),
        methods={
            "inference": ((*_FED, *_VALUES, "square", "options late"), (*_FAULTS, "input")),
            "backprop": ((*_FED, *_VALUES, "square"), (*_FAULTS, "input")),
            "gradients": ((*_BATCHES, "multiple 8", *_CALLED), (*_FAULTS[:6],)),
            "step": ((*_BATCHES[:5], "layout", "sequence", "multiple 8", *_STEPPED, "options late"), _CHANGES),
            "step_outputs": ((*_BATCHES[:5], "layout", "sequence", "multiple 8"), (*_FAULTS, "input")),
            "apply": ((), _CHANGES),
            "state_dict": ((), _FAULTS[:6]),
            "parameters": ((), _FAULTS[:6]),
            "load_state_dict": ((), _CHANGES),
            "write": ((), _CHANGES),
            "read": ((), _CHANGES),
            "export": ((), _CHANGES),
        },
    ),
    "operator": Target(
        check=_check_operator,
        triggers=(
            *_BATCHES,
            *_VALUES,
            "multiple 8",
            "negative",
            "sorted",
            "read-only",
            "dtype float32",
            "dtype float64",
            "layout",
            "call",
            "later",
            "exception",
            "thread",
        ),
        methods={
            "forward": (("sequence",), (*_FAULTS, "input")),
            "backward": (("sequence",), (*_FAULTS, "input")),
            "specs": ((), ("axes",)),
        },
    ),
    "rule": Target(
        check=_check_rule,
        triggers=(
            "size 1",
            "size 3",
            "size 13",
            "size 16385",
            "dtype float32",
            "dtype float64",
            "call",
            "later",
            "exception",
            "thread",
            "traced",
        ),
        methods=dict.fromkeys(
            ("update_rule", "prepare_param", "eval_param", "init_state"), ((), ("scaled", "zero", "shifted"))
        ),
    ),
    "scheme": Target(
        check=_check_scheme,
        triggers=(
            *_BATCHES,
            "rank 0",
            "rank 1",
            "ranks 1",
            "ranks 2",
            "ranks 3",
            "ranks 4",
            "late",
            "epoch 1",
            "nan",
            "multiple 8",
            "empty",
            "dtype float32",
            "dtype float64",
            "layout",
            "call",
            "later",
            "exception",
            "thread",
        ),
        methods={"mean": ((), _CHANGES), "outputs": ((), (*_FAULTS[:6], "input"))},
    ),
    "communicator": Target(
        check=_check_communicator,
        triggers=(
            *_BATCHES,
            "rank 0",
            "rank 2",
            "dtype float32",
            "dtype float64",
            "dtype float16",
            "dtype int64",
            "call",
            "later",
            "exception",
            "thread",
            "multiple 8",
            "part",
        ),
        methods={
            name: (
                (
                    *(f"dtype {each}" for each in ("int32", "int8", "uint64", "bool") if name not in _MESSAGES),
                    *(("axes 2", "axes 3") if name in ("all_reduce", "reduce", "broadcast") else ()),
                    *(f"root+op {root} {op}" for root in (1, 2) for op in ("sum", "max") if name == "reduce"),
                    *(("nan", "infinite") if name in ("all_reduce", "broadcast") else ()),
                    *(("op max", "op min", "op prod") if "reduce" in name else ()),
                    *(("root 1",) if name in ("broadcast", "reduce", "gather", "scatter") else ()),
                ),
                _CHANGES,
            )
            for name in _OUT
        },
    ),
}


def _possible(mutant: Mutant) -> bool:
    """Whether the fault can be seen where the trigger fires: not a swapped axis of a scalar, or zeros of zeros."""
    trigger, fault, method = mutant.trigger, mutant.fault, mutant.method
    if mutant.target == "operator" and method == "specs":
        return trigger.startswith("size") or trigger in ("call", "later")
    # A wrong zero is zero, and a wrong NaN NaN; a true value that is scaled is true.
    if trigger == "dtype bool" and fault in ("scaled", "one element"):
        return False
    if trigger in ("nan", "infinite") and fault in ("scaled", "one element", "input", "stale", "axes"):
        return False
    if method == "step" and trigger == "options groups" and fault == "stale":  # a frozen parameter is what it was
        return False
    if mutant.target == "executor" and trigger == "zeros" and fault == "input":  # a multiple of zeros
        return False
    return not (trigger == "zeros" and fault in ("zero", "scaled", "axes"))


def drawn(seed: int, count: int = 60) -> list[Mutant]:
    """Mutants, as many of each target."""
    rng = np.random.default_rng(seed)
    found: dict[str, Mutant] = {}
    names = list(TARGETS)
    while len(found) < count:
        target = names[len(found) % len(names)]
        known = TARGETS[target]
        method = str(rng.choice(list(known.methods)))
        triggers, faults = known.methods[method]
        mutant = Mutant(
            target=target,
            method=method,
            trigger=str(rng.choice([*known.triggers, *triggers])),
            fault=str(rng.choice(list(faults))),
            seed=int(rng.integers(1000)),
        )
        if _possible(mutant):
            found.setdefault(str(mutant), mutant)
    return list(found.values())


def check_right(target: str, method: str) -> None:
    """Run a target's suite on a part whose trigger never fires."""
    Mutant(target=target, method=method, trigger="never", fault="scaled", seed=0).check()
