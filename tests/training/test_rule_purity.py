# ruff: noqa: S311, NPY002 - impure rules draw from any generator
"""A rule whose calls differ is refused, and what its compiled step holds as a constant cannot change unnoticed."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import ctypes
import datetime
import functools
import gc
import importlib
import io
import itertools
import numbers
import operator
import os
import random
import secrets
import ssl
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import RuleError, UsageError
from deep5.training.frozen_value import frozen
from deep5.training.retrace import Compiled
from deep5.training.trace import trace_rule
from deep5.training.watched_calls import without_collection

Update = Callable[..., Any]
SWITCH = True
TABLE = [1, 2]
COUNTER = itertools.count()
STATE = types.SimpleNamespace(calls=0, factor=2)
calls = 0


def rule(update: Update, **attributes: Any) -> d5.UpdateRule:
    """A rule of one hyperparameter with this update and these attributes."""

    class Own(d5.UpdateRule):
        hyper = ("lr",)

        def __init__(self) -> None:
            self.lr = 0.1
            for name, value in attributes.items():
                setattr(self, name, value)

    Own.update_rule = update  # type: ignore[method-assign]
    return Own()


def counted() -> int:
    global calls
    calls += 1
    return calls


def counted_by_attribute() -> int:
    counted_by_attribute.calls = getattr(counted_by_attribute, "calls", 0) + 1  # type: ignore[attr-defined]
    return int(counted_by_attribute.calls)  # type: ignore[attr-defined]


def closure() -> Update:
    seen = [0]

    def update(self: Any, g: Any, p: Any, st: Any) -> Any:
        seen[0] += 1
        return p - (self.lr if seen[0] > 3 else 2 * self.lr) * g, st

    return update


def appended(self: Any, g: Any, p: Any, st: Any) -> Any:
    self.seen.append(1)
    return p - self.lr * (2 if len(self.seen) > 5 else 1) * g, st


def flipped(self: Any, g: Any, p: Any, st: Any) -> Any:
    return (p - self.lr * g if random.random() < 0.5 else p + self.lr * g), st


def numpy_flipped(self: Any, g: Any, p: Any, st: Any) -> Any:
    return p - self.lr * g * int(np.random.randint(0, 2)), st


def of_class(self: Any, g: Any, p: Any, st: Any) -> Any:
    type(self).__mro__[1].table.append(1)  # type: ignore[attr-defined]
    return p - self.lr * len(self.table) * g, st


def state_of_module(self: Any, g: Any, p: Any, st: Any) -> Any:
    STATE.calls += 1
    return p - self.lr * (1 if STATE.calls < 9 else 2) * g, st


def generated() -> Iterator[int]:
    yield from (1, 1, 1, 2, 2)


IMPURE: dict[str, tuple[Callable[[], d5.UpdateRule], str]] = {
    "np.random": (
        lambda: rule(lambda s, g, p, st: (p - s.lr * g + 0.01 * float(np.random.randn()), st)),
        r"two traces of Own differ: the new parameter has the constant .* in one and .* in the other.*new_input",
    ),
    "np.random, one bit": (lambda: rule(numpy_flipped), "numpy.random|differ"),
    "random, another structure": (lambda: rule(flipped), "Python's 'random'|differ"),
    "a generator": (
        lambda: rule(
            lambda s, g, p, st: (p - s.lr * g * float(s.rng.standard_normal()), st), rng=np.random.default_rng(0)
        ),
        "differ: the new parameter has the constant",
    ),
    "a generator, one bit": (
        lambda: rule(lambda s, g, p, st: (p - s.lr * g * int(s.rng.integers(0, 2)), st), rng=np.random.default_rng(0)),
        "differ|changes the attribute 'rng'",
    ),
    "the old generator": (
        lambda: rule(lambda s, g, p, st: (p - s.lr * g * int(s.rng.randint(0, 2)), st), rng=np.random.RandomState(0)),
        "differ|changes the attribute 'rng'",
    ),
    "random.Random": (
        lambda: rule(lambda s, g, p, st: (p - s.lr * g * s.rng.randint(0, 1), st), rng=random.Random(0)),
        "differ|changes the attribute 'rng'",
    ),
    "the system's bits": (
        lambda: rule(lambda s, g, p, st: (p - s.lr * g * secrets.randbelow(2), st)),
        "differ|random numbers of the system",
    ),
    "uuid": (lambda: rule(lambda s, g, p, st: (p - s.lr * g * (uuid.uuid4().int % 2), st)), "differ|of the system"),
    "time": (lambda: rule(lambda s, g, p, st: (p - s.lr * g * (time.time() % 1), st)), "differ|reads the time"),
    "time in days": (
        lambda: rule(lambda s, g, p, st: (p - s.lr * g * (1 + int(time.time()) // 86400), st)),
        "reads the time while it is traced",
    ),
    "the date": (
        lambda: rule(lambda s, g, p, st: (p - s.lr * g * datetime.datetime.now().year, st)),
        "reads the time while it is traced",
    ),
    "an identity": (lambda: rule(lambda s, g, p, st: (p - s.lr * g * float(id(g)), st)), "differ"),
    "itertools.count": (
        lambda: rule(lambda s, g, p, st: (p - s.lr * g * next(s.count), st), count=itertools.count()),
        "differ",
    ),
    "a counter that has no effect yet": (
        lambda: rule(
            lambda s, g, p, st: (p - s.lr * g * (1 if next(s.count) < 50 else 2), st), count=itertools.count()
        ),
        "changes the attribute 'count' while it is traced",
    ),
    "a global counter that has no effect yet": (
        lambda: rule(lambda s, g, p, st: (p - s.lr * g * (1 if next(COUNTER) < 10**6 else 2), st)),
        "changes the global 'COUNTER'",
    ),
    "a generator of Python": (
        lambda: rule(lambda s, g, p, st: (p - s.lr * g * next(s.numbers), st), numbers=generated()),
        "changes the attribute 'numbers'",
    ),
    "a global in a function": (
        lambda: rule(lambda s, g, p, st: (p - s.lr * g * (1 if counted() < 10**6 else 2), st)),
        "changes the global 'calls'",
    ),
    "an attribute of a function": (
        lambda: rule(lambda s, g, p, st: (p - s.lr * g * (1 if counted_by_attribute() < 10**6 else 2), st)),
        "changes the attributes of counted_by_attribute",
    ),
    "a global object": (lambda: rule(state_of_module), "changes the global 'STATE'"),
    "a list, from the sixth call on": (lambda: rule(appended, seen=[]), "changes the attribute 'seen'|differ"),
    "an enclosing variable, from the fourth call on": (lambda: rule(closure()), "changes the variable 'seen'"),
}


class Counted:
    calls = 0

    def compute(self) -> int:
        Counted.calls += 1
        return 1 if Counted.calls < 10**6 else 2


def counting(update: Update) -> Update:
    seen = [0]

    @functools.wraps(update)
    def wrapper(*args: Any) -> Any:
        seen[0] += 1
        param, state = update(*args)
        return (param, state) if seen[0] < 10**6 else (param * 2, state)

    return wrapper


def counted_memory(self: Any, g: Any, p: Any, st: Any) -> Any:
    self.memory.value += 1
    return p - self.lr * g * (1 if self.memory.value < 10**6 else 2), st


def times(read: Callable[[Any, Any], Any], **attributes: Any) -> Callable[[], d5.UpdateRule]:
    return lambda: rule(lambda s, g, p, st: (p - s.lr * g * read(s, g), st), **attributes)


NAMES = {"weight", "bias", "scale", "embedding"}
IMPURE |= {
    "the order of a set": (times(lambda s, g: len(next(iter(s.names))), names=set(NAMES)), "differ"),
    "the order of a frozen set": (times(lambda s, g: len(tuple(s.names)[-1]), names=frozenset(NAMES)), "differ"),
    "a hash": (times(lambda s, g: 1 + hash("weight") % 7), "reads a hash"),
    "a hash of an attribute": (times(lambda s, g: 1 + hash(s.name) % 7, name="weight"), "reads a hash"),
    "an address": (times(lambda s, g: 1 + id(s.names) % 7, names=[1]), "reads the address"),
    "the process": (times(lambda s, g: 1 + os.getpid() % 7), "reads the number of the process"),
    "the thread": (times(lambda s, g: 1 + threading.get_ident() % 7), "reads the identity of the thread"),
    "the thread's name": (times(lambda s, g: len(threading.current_thread().name)), "reads the identity of the thread"),
    "os.getrandom": (times(lambda s, g: 1 + (os.getrandom(2) == b"ab")), "random numbers of the system"),
    "ssl": (times(lambda s, g: 1 + (ssl.RAND_bytes(2) == b"ab")), "random numbers of the system"),
    "os.times": (times(lambda s, g: 1 + int(os.times().elapsed) // 10**9), "reads the time"),
    "numpy's date": (times(lambda s, g: int(np.datetime64("today", "Y").astype(int))), "reads the time"),
    "a partial of time": (times(lambda s, g: functools.partial(time.time)() // 10**7), "reads the time"),
    "a partial in an attribute": (
        times(lambda s, g: s.clock() // 10**7, clock=functools.partial(time.time)), "reads the time",
    ),
    "an iterator of time": (times(lambda s, g: next(iter(time.time, None)) // 10**7), "reads the time"),
    "a function that is called unseen": (times(lambda s, g: next(map(operator.call, [time.time])) // 10**7), "time"),
    "cycle": (times(lambda s, g: next(s.it), it=itertools.cycle([1] * 99 + [2])), "changes the attribute 'it'"),
    "chain": (times(lambda s, g: next(s.it), it=itertools.chain([1] * 99, [2])), "changes the attribute 'it'"),
    "zip": (times(lambda s, g: next(s.it)[0], it=zip([1] * 99, [2] * 99, strict=True)), "changes the attribute 'it'"),
    "map": (times(lambda s, g: next(s.it), it=map(abs, [1] * 99)), "changes the attribute 'it'"),
    "enumerate": (times(lambda s, g: next(s.it)[1], it=enumerate([1] * 99)), "changes the attribute 'it'"),
    "accumulate": (times(lambda s, g: 1 + next(s.it) // 99, it=itertools.accumulate([1] * 99)), "changes the attrib"),
    "bytes in memory": (times(lambda s, g: s.it.read(1)[0], it=io.BytesIO(b"1" * 99)), "changes the attribute 'it'"),
    "text in memory": (times(lambda s, g: int(s.it.read(1)), it=io.StringIO("1" * 99)), "changes the attribute 'it'"),
    "a number of C": (lambda: rule(counted_memory, memory=ctypes.c_int(0)), "changes the attribute 'memory'"),
    "a counter of a class": (times(lambda s, g: Counted().compute()), "changes the global 'Counted'"),
    "a counter in a decorator": (
        lambda: rule(counting(lambda s, g, p, st: (p - s.lr * g, st))), "changes the variable 'seen'",
    ),
}  # fmt: skip


def test_a_module_with_a_name_of_the_standard_library_is_the_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
import deep5 as d5
COUNTER = [0]
class Own(d5.UpdateRule):
    hyper = ("lr",)
    lr = 0.1
    def update_rule(self, grad, param, state):
        COUNTER[0] += 1
        return param - self.lr * grad * (1 if COUNTER[0] < 10**6 else 2), state
"""
    (tmp_path / "this.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "this", raising=False)
    own = importlib.import_module("this")
    try:
        with pytest.raises(RuleError, match="changes the global 'COUNTER'"):
            trace_rule(own.Own())
    finally:
        del sys.modules["this"]


def test_torch_s_generators_are_watched() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator()
    for make, what in (
        (times(lambda s, g: 1 + int(torch.rand(()) > 2)), "draws random numbers from 'torch'"),
        (
            times(lambda s, g: 1 + int(torch.rand((), generator=s.rng) > 2), rng=generator),
            "changes the attribute 'rng'",
        ),
    ):
        with pytest.raises(RuleError, match=what):
            trace_rule(make())


MEMO: dict[int, int] = {}


def remembered(number: int) -> int:
    if number not in MEMO:
        MEMO[number] = number * number
    return MEMO[number]


class Keyed:
    """An object that is looked up by a string."""

    def __hash__(self) -> int:
        return hash("keyed")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyed)


HONEST: dict[str, Callable[[], d5.UpdateRule]] = {
    "a sorted set": times(lambda s, g: len(sorted(s.names)[0]), names=set(NAMES)),
    "membership": times(lambda s, g: 2 if "bias" in s.names else 1, names=set(NAMES)),
    "the length of a set": times(lambda s, g: len(s.names), names=frozenset(NAMES)),
    "the order of integers": times(lambda s, g: next(iter(s.sizes)), sizes={3, 1, 2}),
    "the order of tuples of integers": times(lambda s, g: next(iter(s.sizes))[0], sizes={(3, 1), (1, 2)}),
    "a memo": times(lambda s, g: remembered(3)),
    "a hash of integers": times(lambda s, g: 1 + hash((1, 2)) % 7),
    "an object as a key": times(lambda s, g: {Keyed(): 2}[Keyed()]),
    "a clock that is not read": times(lambda s, g: 1, clock=functools.partial(time.time)),
    "a clock for another method": times(lambda s, g: 1 if s.quiet else time.time(), quiet=True),
    "a decorator": lambda: rule(functools.wraps(generated)(lambda s, g, p, st: (p - s.lr * g, st))),
    "a class with constants": times(lambda s, g: Config.factor),
    "an iterator of its own": times(lambda s, g: next(itertools.cycle([1, 2]))),
    "a lock": times(lambda s, g: threading.RLock() is not None),
    "a copy": times(lambda s, g: copy.deepcopy(s.table)["a"][0], table={"a": [1]}),
}


@pytest.mark.parametrize("name", HONEST)
def test_a_rule_that_computes_the_same_is_accepted(name: str) -> None:
    MEMO.clear()
    kernel = d5.bind_rule(HONEST[name](), {"w": d5.TensorSpec(shape=(3,), dtype="float64")})
    kernel.attach({"w": np.zeros(3)})
    for step in range(3):
        kernel.update({"w": np.ones(3)}, d5.StepInfo(step=step, batch_size=1))


@pytest.mark.parametrize("name", IMPURE)
def test_a_rule_whose_calls_differ_is_refused(name: str) -> None:
    make, message = IMPURE[name]
    with pytest.raises(RuleError, match=message) as error:
        trace_rule(make())
    assert "remedy" in str(error.value)
    assert "new_input" in str(error.value)


@pytest.mark.parametrize("method", ["init_state", "sums", "prepare_param", "eval_param"])
def test_every_method_is_traced_twice(method: str) -> None:
    class Own(d5.UpdateRule):
        hyper = ("lr",)
        scope = "tensor"

        def __init__(self) -> None:
            self.lr, self.count = 0.1, itertools.count(1)

        def number(self, name: str) -> int:
            return next(self.count) if name == method else 1

        def init_state(self, param: Any) -> Any:
            return {"m": param * self.number("init_state")}

        def sums(self, grad: Any, param: Any, state: Any) -> Any:
            return {"total": d5.array_namespace(grad).sum(grad * self.number("sums"))}

        def prepare_param(self, param: Any, state: Any) -> Any:
            return param * self.number("prepare_param")

        def eval_param(self, param: Any, state: Any) -> Any:
            return param * self.number("eval_param")

        def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
            return param - self.lr * grad * self.total, {"m": grad}

        total: Any

    with pytest.raises(
        RuleError, match=r"two traces of Own differ: the (initial state 'm'|sum 'total'|gradient's point|value for)"
    ):
        trace_rule(Own())


def test_new_input_is_a_function_of_the_step() -> None:
    class Own(d5.UpdateRule):
        hyper = ("lr",)
        lr = 0.1

        def new_input(self, info: Any) -> Any:
            return {"noise": float(np.random.randn()) if info.step == late else 1.0}

        def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
            return param - self.lr * grad * self.noise, state

        noise: float

    for late in (0, 3, 1000):
        with pytest.raises(
            RuleError, match=f"for the same step {late}; .*remedy: info.step instead of a counter or the time"
        ):
            trace_rule(Own())


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (lambda: 1 + int(time.time()) // 86400, "new_input reads the time"),
        (lambda: np.random.randint(0, 2), "new_input reads 'numpy.random'|for the same step"),
        (lambda: random.randint(0, 1), "new_input reads Python's 'random'|for the same step"),
    ],
)
def test_new_input_reads_neither_clock_nor_generator(number: Callable[[], float], message: str) -> None:
    class Own(d5.UpdateRule):
        hyper = ("lr",)
        lr = 0.1

        def new_input(self, info: Any) -> Any:
            return {"factor": number()}

        def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
            return param - self.lr * grad * self.factor, state

        factor: float

    with pytest.raises(RuleError, match=message):
        trace_rule(Own())


def test_a_hyperparameter_is_one_number() -> None:
    class Own(d5.UpdateRule):
        hyper = ("lr",)
        count = itertools.count(1)

        @property
        def lr(self) -> float:
            return 0.1 * next(self.count)

        def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
            return param - self.lr * grad, state

    with pytest.raises(RuleError, match=r"Own\.lr is another number each time"):
        trace_rule(Own())


def test_random_numbers_have_a_right_way() -> None:
    class Noisy(d5.UpdateRule):
        hyper = ("lr",)
        lr = 0.1

        def new_input(self, info: Any) -> Any:
            return {"noise": float(d5.generator(info.seed, "noise", info.step).standard_normal())}

        def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
            return param - self.lr * grad + self.noise, state

        noise: float

    d5.check_optimizer(Noisy())
    kernel = d5.bind_rule(Noisy(), {"w": d5.TensorSpec(shape=(3,), dtype="float64")})
    live = {"w": np.zeros(3)}
    kernel.attach(live)
    found = []
    for step in range(2):
        kernel.update({"w": np.zeros(3)}, d5.StepInfo(step=step, batch_size=1, seed=7))
        found.append(live["w"][0])
    draws = [d5.generator(7, "noise", step).standard_normal() for step in range(2)]
    np.testing.assert_allclose(found, np.cumsum(draws), rtol=1e-12)  # one addition a step


def test_pure_rules_may_log_and_keep_caches_that_they_do_not_read() -> None:
    import logging

    class Own(d5.UpdateRule):
        hyper = ("lr",)
        seen: ClassVar[list[int]] = []

        def __init__(self) -> None:
            self.lr, self.history = 0.1, [0]

        def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
            logging.getLogger("deep5.test").debug("traced")
            return param - self.lr * grad, state

    own = Own()
    kernel = d5.bind_rule(own, {"w": d5.TensorSpec(shape=(3,), dtype="float64")})
    kernel.attach({"w": np.zeros(3)})
    own.history.append(1)  # nothing that update_rule reads
    kernel.update({"w": np.zeros(3)}, d5.StepInfo(batch_size=1))


# Changes in mid-run.


class Parent(d5.UpdateRule):
    inherited = 1
    flag = True

    def helper(self) -> int:
        return 1


class Changing(Parent):
    hyper = ("lr",)

    def __init__(self) -> None:
        self.lr = 0.1
        self.times, self.on, self.kind, self.nothing = 1, True, "plain", None
        self.numbers, self.table, self.pair = [1, 1], {"a": [1]}, (1, [1])
        self.array = np.array([1, 1])
        self.inner = types.SimpleNamespace(factor=1, deep={"x": [1]})
        self.call = functools.partial(int, 1)

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        factor = self.times * self.numbers[0] * self.table["a"][0] * self.pair[1][0] * int(self.array[1])
        factor *= self.inner.factor * self.inner.deep["x"][0] * self.inherited * self.helper() * self.call()
        factor *= 1 if self.on and self.flag and self.kind == "plain" and self.nothing is None else 0
        factor *= getattr(self, "added", 1) * (1 if SWITCH else 0) * TABLE[0] * STATE.factor
        return param - self.lr * factor * grad, state


def set_global(name: str, value: Any) -> Callable[[Any], None]:
    return lambda own: globals().__setitem__(name, value)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an integer": lambda own: setattr(own, "times", 0),
    "a bool": lambda own: setattr(own, "on", False),
    "a string": lambda own: setattr(own, "kind", "other"),
    "None": lambda own: setattr(own, "nothing", 3),
    "an item of a list": lambda own: own.numbers.__setitem__(0, 5),
    "a list of a dict": lambda own: own.table["a"].__setitem__(0, 7),
    "a list in a tuple": lambda own: own.pair[1].__setitem__(0, 7),
    "an array in place": lambda own: own.array.__setitem__(1, 3),
    "an array for another": lambda own: setattr(own, "array", np.array([1, 4])),
    "an array for an integer": lambda own: setattr(own, "times", np.array(2)),
    "an attribute of an object": lambda own: setattr(own.inner, "factor", 3),
    "a list of an object": lambda own: own.inner.deep["x"].append(3),
    "another object": lambda own: setattr(own, "inner", types.SimpleNamespace(factor=2, deep={"x": [1]})),
    "an inherited attribute": lambda own: setattr(own, "inherited", 3),
    "an attribute of the parent class": lambda own: setattr(Parent, "inherited", 3),
    "a bool of the parent class": lambda own: setattr(Parent, "flag", False),
    "a method": lambda own: setattr(own, "helper", lambda: 3),
    "a method of the class": lambda own: setattr(Changing, "helper", lambda self: 3),
    "update_rule itself": lambda own: setattr(own, "update_rule", lambda g, p, st: (p, st)),
    "a partial": lambda own: setattr(own, "call", functools.partial(int, 2)),
    "an added attribute": lambda own: setattr(own, "added", 3),
    "a deleted attribute": lambda own: delattr(own, "times"),
    "hyper": lambda own: setattr(own, "hyper", ("lr", "times")),
    "a global": set_global("SWITCH", False),
    "an item of a global": lambda own: TABLE.__setitem__(0, 4),
    "an attribute of a global": lambda own: setattr(STATE, "factor", 4),
}


@pytest.fixture
def restored() -> Iterator[None]:
    kept = {name: globals()[name] for name in ("SWITCH", "TABLE")}
    yield
    globals().update(kept)
    TABLE[:] = [1, 2]
    STATE.factor = 2
    Parent.inherited, Parent.flag = 1, True
    if "helper" in vars(Changing):
        del Changing.helper


FRAMEWORKS = ("reference", "pytorch", "jax", "tensorflow", "onnxruntime", "openvino")


def bound(framework: str, optimizer: Any) -> tuple[Any, Callable[[int], None]]:
    """An executor, and a function that does a step."""
    pytest.importorskip({"pytorch": "torch", "reference": "numpy"}.get(framework, framework))
    executor = d5.framework(framework).executor(d5.networks.mlp(features=4, hidden=3, classes=2), seed=1)
    optimizer.bind(executor)
    batch = {"input": np.ones((2, 4), "float32"), "label": np.array([0, 1])}
    return executor, lambda step: optimizer.step(batch, d5.StepInfo(step=step, batch_size=2))


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("backend", ["c", "numpy"])
def test_a_change_that_would_have_no_effect_is_refused(name: str, backend: str, restored: None) -> None:
    own, live = Changing(), {"w": np.ones(3)}
    kernel = d5.bind_rule(own, {"w": d5.TensorSpec(shape=(3,), dtype="float64")}, backend=backend)
    kernel.attach(live)
    grad = {"w": np.ones(3)}
    kernel.update(grad, d5.StepInfo(step=0, batch_size=1))
    own.lr = 0.05  # a hyperparameter takes effect
    kernel.update(grad, d5.StepInfo(step=1, batch_size=1))
    np.testing.assert_allclose(live["w"], 1 - 0.2 - 0.1, rtol=1e-12)  # the factor of STATE is 2
    before = live["w"].copy()
    CHANGES[name](own)
    with pytest.raises(RuleError, match=r"Changing at step 2: .*but the step was compiled with the earlier value"):
        kernel.update(grad, d5.StepInfo(step=2, batch_size=1))
    np.testing.assert_array_equal(live["w"], before)


# Symbols that a rule takes for numbers or arrays.


def caught(attempt: Callable[[Any, Any], Any]) -> Update:
    """An update that goes another way where the attempt fails."""

    def update(self: Any, g: Any, p: Any, st: Any) -> Any:
        with contextlib.suppress(Exception):
            if attempt(self, g):
                return p - self.lr * g, st
        return p + self.lr * g, st

    return update


TAKEN_FOR_NUMBERS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "a condition": (lambda s, g: d5.array_namespace(g).any(g > 0), "xp.any"),
    "a comparison": (lambda s, g: bool(s.lr > 0), "decided by the value"),
    "float": (lambda s, g: float(s.lr), "to a Python number"),
    "int": (lambda s, g: int(s.lr), "to a Python number"),
    "round": (lambda s, g: round(s.lr, 2), "rounded"),
    "a function of NumPy": (lambda s, g: np.any(np.asarray(g) > 0), "function of NumPy"),
    "a method": (lambda s, g: g.any(), "used '.any'"),
    "isinstance of an array": (lambda s, g: isinstance(g, np.ndarray), "decided by the type"),
    "isinstance of a number": (lambda s, g: isinstance(s.lr, float), "decided by the type"),
    "isinstance of an abstract type": (lambda s, g: isinstance(s.lr, numbers.Number), "decided by the type"),
    "a dictionary": (lambda s, g: {0.1: 2}.get(s.lr, 0), "looked up"),
    "str": (lambda s, g: str(s.lr) == "0.1", "to a string"),
    "repr": (lambda s, g: repr(s.lr) == "0.1", "to a string"),
    "a format": (lambda s, g: f"{s.lr:.1f}" == "0.1", "to a string"),
    "the dtype as a string": (lambda s, g: "64" in str(g.dtype), "the dtype of an array to a string"),
    "the dtype in a format": (lambda s, g: "64" in f"{g.dtype}", "the dtype of an array to a string"),
    "a comparison of the dtype": (lambda s, g: g.dtype == np.float64, "decided by the dtype"),
    "a comparison with a string": (lambda s, g: g.dtype == "float64", "decided by the dtype"),
    "the dtype in a dictionary": (lambda s, g: {np.dtype("float64"): 1}.get(g.dtype), "decided by the dtype"),
    "the dtype's kind": (lambda s, g: g.dtype.kind == "f", "used '.kind' of the dtype"),
    "the dtype's size": (lambda s, g: g.dtype.itemsize == 8, "used '.itemsize' of the dtype"),
}


@pytest.mark.parametrize("name", TAKEN_FOR_NUMBERS)
@pytest.mark.parametrize("catches", [False, True])
def test_a_symbol_that_is_taken_for_a_number_is_refused(name: str, catches: bool) -> None:
    """Also where the rule catches the error: on arrays it would go another way than in the trace."""
    attempt, message = TAKEN_FOR_NUMBERS[name]
    update = caught(attempt) if catches else lambda s, g, p, st: (p - s.lr * g * (1 if attempt(s, g) else 2), st)
    with pytest.raises(RuleError, match=message) as error:
        trace_rule(rule(update))
    assert "allowed" in str(error.value) or "remedy" in str(error.value)


def test_a_shape_that_a_rule_fails_to_read_is_not_lost() -> None:
    """The first trace, for all shapes, has none; the second has."""
    live = {"w": np.zeros(3)}
    kernel = d5.bind_rule(rule(caught(lambda s, g: g.shape[0] == 3)), {"w": d5.TensorSpec(shape=(3,), dtype="float64")})
    kernel.attach(live)
    kernel.update({"w": np.ones(3)}, d5.StepInfo(batch_size=1))
    np.testing.assert_allclose(live["w"], -0.1)


def test_a_rule_may_log_its_symbols_and_pass_on_dtypes() -> None:
    import logging

    def update(self: Any, g: Any, p: Any, st: Any) -> Any:
        xp = d5.array_namespace(p)
        logging.getLogger("deep5.test").warning("%s %r %s", self.lr, g, g.dtype)
        assert g.dtype == p.dtype
        assert self.lr is not None
        return p - self.lr * xp.asarray(g, dtype=p.dtype) * xp.ones((), dtype=g.dtype), st

    trace_rule(rule(update))


# Changes that no code of the rule names: they show when the rule is traced again.


class Config:
    factor = 2


class Holder:
    def compute(self) -> int:
        return int(TABLE[0])


def scaled(number: int) -> int:
    return number * TABLE[0]


def imported(own: Any, grad: Any) -> int:
    import deep5_test_settings as settings  # type: ignore[import-not-found]

    return int(settings.factor)


SETTINGS: Any = types.ModuleType("deep5_test_settings")
SETTINGS.factor = 2
VARIABLE = contextvars.ContextVar("VARIABLE", default=2)
PARTIAL = functools.partial(scaled, 2)
LAMBDAS = [lambda: TABLE[0]]
NUMBERS = {"a": 1, "b": 2}
HIDDEN: dict[str, tuple[Callable[[Any, Any], Any], Callable[[], Any]]] = {
    "a class": (lambda s, g: Config.factor, lambda: setattr(Config, "factor", 5)),
    "a class of an attribute": (lambda s, g: s.config.factor, lambda: setattr(Config, "factor", 5)),
    "the class of an object": (lambda s, g: Config().factor, lambda: setattr(Config, "factor", 5)),
    "type(self)": (lambda s, g: type(s).inherited, lambda: setattr(Parent, "inherited", 5)),
    "the parent class": (lambda s, g: Parent.inherited, lambda: setattr(Parent, "inherited", 5)),
    "a method of another class": (lambda s, g: Holder().compute(), lambda: TABLE.__setitem__(0, 5)),
    "an import": (imported, lambda: setattr(SETTINGS, "factor", 5)),
    "a partial": (lambda s, g: PARTIAL(), lambda: TABLE.__setitem__(0, 5)),
    "a list of functions": (lambda s, g: LAMBDAS[0](), lambda: TABLE.__setitem__(0, 5)),
    "globals()": (lambda s, g: globals()["TABLE"][0], lambda: TABLE.__setitem__(0, 5)),
    "a variable of the context": (lambda s, g: VARIABLE.get(), lambda: VARIABLE.set(5)),
    "os.getenv": (lambda s, g: int(os.getenv("DEEP5_T", "2")), lambda: os.environ.__setitem__("DEEP5_T", "5")),
    "the order of a dict": (
        lambda s, g: next(iter(NUMBERS.values())), lambda: NUMBERS.__setitem__("a", NUMBERS.pop("a")),
    ),
    "an integer for a bool": (lambda s, g: 1 if s.flags[0] is True else 3, lambda: FLAGS.__setitem__(0, 1)),
}  # fmt: skip
FLAGS: list[Any] = [True]


@pytest.fixture
def unhidden(restored: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "deep5_test_settings", SETTINGS)
    yield
    Config.factor, SETTINGS.factor, FLAGS[0] = 2, 2, True
    VARIABLE.set(2)
    os.environ.pop("DEEP5_T", None)
    NUMBERS.clear()
    NUMBERS.update(a=1, b=2)


def hidden(name: str) -> d5.UpdateRule:
    read = HIDDEN[name][0]
    own = rule(lambda s, g, p, st: (p - s.lr * g * read(s, g), st), config=Config, flags=FLAGS)
    type(own).inherited = 2  # type: ignore[attr-defined]
    return own


@pytest.mark.parametrize("name", HIDDEN)
def test_a_change_of_anything_that_a_rule_reads_is_found(
    name: str, unhidden: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deep5.training.retrace._SHARE", 0)  # however long a trace takes
    kernel = d5.bind_rule(hidden(name), {"w": d5.TensorSpec(shape=(3,), dtype="float64")})
    kernel.attach({"w": np.zeros(3)})
    grad = {"w": np.ones(3)}
    kernel.update(grad, d5.StepInfo(step=0, batch_size=1))
    HIDDEN[name][1]()
    if name == "type(self)":
        type(kernel.rule).inherited = 5  # type: ignore[attr-defined]

    def train() -> None:
        for step in range(1, 64):
            kernel.update(grad, d5.StepInfo(step=step, batch_size=1))

    with pytest.raises(RuleError, match=r"Own (after|at step) .*but the step was compiled with the earlier value"):
        train()


class Derived(Config):
    pass


OUTER: Any = types.ModuleType("deep5_test_outer")
OUTER.inner = SETTINGS


@pytest.mark.parametrize(
    ("read", "change"),
    [
        (lambda s, g: Config.factor, lambda: setattr(Config, "factor", 5)),
        (lambda s, g: Derived.factor, lambda: setattr(Config, "factor", 5)),
        (lambda s, g: OUTER.inner.factor, lambda: setattr(SETTINGS, "factor", 5)),
    ],
)
def test_a_change_of_a_class_or_module_is_refused_at_once(
    read: Any, change: Any, unhidden: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compiled, "confirm", lambda self: None)
    kernel = d5.bind_rule(times(read)(), {"w": d5.TensorSpec(shape=(3,), dtype="float64")})
    live = {"w": np.zeros(3)}
    kernel.attach(live)
    kernel.update({"w": np.ones(3)}, d5.StepInfo(step=0, batch_size=1))
    before = live["w"].copy()
    change()
    with pytest.raises(RuleError, match="at step 1: the global 'factor' is another one"):
        kernel.update({"w": np.ones(3)}, d5.StepInfo(step=1, batch_size=1))
    np.testing.assert_array_equal(live["w"], before)


@pytest.mark.parametrize("late", [3, 6])
def test_a_change_is_found_before_training_ends(late: int, unhidden: None) -> None:
    """At the end of an epoch if enough time has passed, else at the end."""
    data = d5.datasets.synthetic(shape=(4,), classes=2, train=12, test=4)
    executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    trainer = d5.Trainer(executor, hidden("a class"), d5.OrderedSampler(data.train, 2))

    class Change(d5.Event):
        def after_step(self, trainer: Any, *args: Any) -> None:
            if trainer.step == late:
                Config.factor = 5

    class End(d5.Event):
        status = ""

        def after_training(self, trainer: Any) -> None:
            self.status = trainer.status

    end = End()
    said = r"(has the constant 2\.0 in the compiled step and 5\.0 now|it is now 5).*remedy"
    with pytest.raises(RuleError, match=said):
        trainer.train(1, [Change(), end])
    assert trainer.status == "failed"


def test_traces_are_repeated_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = d5.bind_rule(d5.Adam(), {"w": d5.TensorSpec(shape=(3,), dtype="float64")})
    kernel.attach({"w": np.zeros(3)})
    found, confirm = list[int](), Compiled.confirm
    monkeypatch.setattr(Compiled, "confirm", lambda self: (found.append(self.steps), confirm(self)))
    for step in range(2000):
        kernel.update({"w": np.ones(3)}, d5.StepInfo(step=step, batch_size=1))
    assert set(found) <= {2, 3, 4, *(2**power for power in range(3, 12))}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_back_end_refuses_it(framework: str, restored: None) -> None:
    own = Changing()
    optimizer = d5.RuleOptimizer(own)
    executor, step = bound(framework, optimizer)
    step(0)
    for number, name in enumerate(("an integer", "an item of a list", "a bool of the parent class"), start=1):
        before = {key: np.array(value) for key, value in executor.state_dict().items()}
        CHANGES[name](own)
        with pytest.raises(RuleError, match=f"Changing at step {number}: the attribute"):
            step(number)
        for key, value in executor.state_dict().items():
            np.testing.assert_array_equal(value, before[key])
        own.times, own.numbers, Parent.flag = 1, [1, 1], True  # restored, the run continues
        step(number)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_pipeline_is_watched(framework: str) -> None:
    optimizer = d5.RuleOptimizer(d5.SGD(lr=0.1), clip_value=1.0)
    _, step = bound(framework, optimizer)
    step(0)
    optimizer.pipeline.clip_value = 0.5  # a number, which takes effect
    step(1)
    optimizer.pipeline.clip_norm = 1.0
    with pytest.raises(RuleError, match=r"clip_norm is 1\.0, but the step was made with None"):
        step(2)
    optimizer.pipeline.clip_norm = None
    optimizer.pipeline.master_weights = False
    with pytest.raises(RuleError, match="master_weights is False, but the step was made with None"):
        step(2)
    optimizer.pipeline.master_weights = None
    optimizer.set_hyper("clip_norm", 1.0)
    step(2)


def test_the_optimizer_and_its_groups_are_watched() -> None:
    group = d5.ParameterGroup(lambda name: name.endswith("bias"), lr=0.2)
    optimizer = d5.RuleOptimizer(d5.SGD(lr=0.1), groups=[group])
    _, step = bound("reference", optimizer)
    step(0)
    for name, value in {"rule": d5.SGD(), "loss": "other", "pipeline": d5.GradientPipeline()}.items():
        with pytest.raises(UsageError, match=f"{name} of a bound optimizer.*remedy"):
            setattr(optimizer, name, value)
    for change, undo in (
        (lambda: group.hyper.update(lr=0.3), lambda: group.hyper.update(lr=0.2)),
        (lambda: group.hyper.update(weight_decay=0.3), lambda: group.hyper.pop("weight_decay")),
        (lambda: setattr(group, "frozen", True), lambda: setattr(group, "frozen", False)),
        (lambda: setattr(group, "match", str.isupper), None),
    ):
        change()
        with pytest.raises(UsageError, match=r"parameter group 0 .*set_parameter"):
            step(1)
        if undo is not None:
            undo()
            step(1)


def test_a_group_of_the_optimizer_takes_no_new_names() -> None:
    group = d5.ParameterGroup(lambda name: name.endswith("bias"), lr=0.2)
    optimizer = d5.RuleOptimizer(d5.Momentum(lr=0.1), groups=[group])
    _, step = bound("reference", optimizer)
    optimizer._groups[0].hyper["momentum"] = 0.5
    with pytest.raises(RuleError, match=r"sets \['lr', 'momentum'\], but the step was made for \['lr'\]"):
        step(0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2), (1.0, 2.0), (0.0, -0.0), ("a", "b"), ([1], [2]), ((1,), (1, 1)), ({1: 2}, {1: 3}), ({1}, {2}),
        (np.zeros(2), np.ones(2)), (np.zeros(2), np.zeros(2, "float32")), (np.array([None]), np.array([1])),
        (bytearray(b"a"), bytearray(b"b")), (functools.partial(int, 1), functools.partial(int, 2)),
    ],
)  # fmt: skip
def test_contents_are_told_apart(one: Any, other: Any) -> None:
    assert frozen(one) == frozen(one)
    assert frozen(one) != frozen(other)


def test_content_of_cyclic_and_large_objects() -> None:
    cyclic: list[Any] = [1]
    cyclic.append(cyclic)
    before = frozen(cyclic)
    assert frozen(cyclic) == before
    cyclic[0] = 2
    assert frozen(cyclic) != before
    large = [[index] for index in range(20_000)]
    assert frozen(large) == frozen(large)
    assert frozen([float("nan")]) == frozen([float("nan")])


def test_the_environment_is_watched() -> None:
    own = rule(lambda s, g, p, st: (p - s.lr * g * int(os.environ.get("DEEP5_TEST_FACTOR", "1")), st))
    kernel = d5.bind_rule(own, {"w": d5.TensorSpec(shape=(3,), dtype="float64")})
    kernel.attach({"w": np.zeros(3)})
    kernel.update({"w": np.zeros(3)}, d5.StepInfo(batch_size=1))
    os.environ["DEEP5_TEST_FACTOR"] = "2"
    try:
        with pytest.raises(RuleError, match="the global 'environ'"):
            kernel.update({"w": np.zeros(3)}, d5.StepInfo(batch_size=1))
    finally:
        del os.environ["DEEP5_TEST_FACTOR"]


def test_a_thread_that_ends_its_trace_does_not_start_the_collector_of_another() -> None:
    def trace() -> None:
        trace_rule(d5.SGD(0.1))

    with without_collection():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(trace).result()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_reads_the_clock_accuses_no_rule() -> None:
    """As JAX's does, at any time."""
    threshold, read = gc.get_threshold(), list[float]()

    def stamp(phase: str, info: dict[str, int]) -> None:
        read.append(time.perf_counter())

    gc.callbacks.append(stamp)
    gc.set_threshold(1, 1, 1)
    try:
        for rule in (d5.SGD(0.1), d5.Adam(), d5.AcceleGrad()):
            trace_rule(rule)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(stamp)
    assert read
    assert gc.isenabled()
