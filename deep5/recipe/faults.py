"""Errors in the values of a recipe's keys: one function per form of value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from deep5.core.errors import UsageError, suggestion
from deep5.core.former_paths import present_name
from deep5.core.plugins import KINDS, mode_fault, registered

__all__ = [
    "attributes_fault",
    "batch_size_fault",
    "bounds_fault",
    "collective_fault",
    "component_fault",
    "deadline_fault",
    "decay_fault",
    "device_fault",
    "dtype_fault",
    "frameworks_fault",
    "groups_fault",
    "in_a_file",
    "init_fault",
    "is_onnx_file",
    "is_pair",
    "launcher_fault",
    "limit_fault",
    "loss_fault",
    "loss_scale_fault",
    "master_weights_fault",
    "names_fault",
    "percentile_fault",
    "positive_fault",
    "precision_fault",
    "rate_fault",
    "scenario_fault",
    "schedules_fault",
    "shapes_fault",
    "share_fault",
    "text_fault",
    "timeout_fault",
    "transport_fault",
    "uses_fault",
]

_PRECISIONS = ("float32", "float64", "bfloat16", "float16")
_COLLECTIVE = ("all_reduce",)
# Of deep5.bench.serving.plan, which NumPy is loaded for.
_SCENARIOS = ("single_stream", "multi_stream", "server", "offline")
_TRANSPORTS = ("in_process", "http")
_LAUNCHERS = ("mpiexec", "torchrun", "threads")


def is_onnx_file(value: Any) -> bool:
    """Whether the value of `model` is the path of an ONNX file."""
    return isinstance(value, str) and value.lower().endswith(".onnx")


def is_pair(value: Any) -> bool:
    """Whether the value of `model` is `(init, apply)`: the functions of a network written in JAX."""
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(callable, value))


def text_fault(value: Any) -> str | None:
    """A non-empty string."""
    return None if isinstance(value, str) and value else f"is {value!r}; allowed: a string"


def uses_fault(value: Any) -> str | None:
    """Names of uses, separated by commas in a string; the problems check which exist."""
    if isinstance(value, str) or (isinstance(value, (list, tuple)) and all(isinstance(use, str) for use in value)):
        return None
    return f"is {value!r}; allowed: a tuple such as ('training',)"


def frameworks_fault(value: Any) -> str | None:
    """Names of registered frameworks, modes included; separated by commas in a string."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        return f"is {value!r}; allowed: a tuple of names, such as ('pytorch', 'jax')"
    known = registered("frameworks")
    for name in names:
        if ".py:" in name:
            continue  # read where it is used
        if name.partition(":")[0] not in known:
            return (
                f"holds the unknown framework {name!r}; allowed: {', '.join(known)}, or FILE.py:NAME"
                f"{suggestion(name, known)}"
            )
        if ":" in name and (fault := mode_fault(name)) is not None:
            return f"holds {name!r}: {fault}"
    if len(set(names)) < len(names):
        return f"is {value!r}, a framework twice; allowed: each once"
    return None


def shapes_fault(value: Any) -> str | None:
    """A shape of each input."""
    if isinstance(value, (list, tuple)) and all(
        isinstance(shape, (list, tuple)) and all(type(extent) is int and extent >= 0 for extent in shape)
        for shape in value
    ):
        return None
    return f"is {value!r}; allowed: a shape an input, such as ((64, 64), (64, 64))"


def attributes_fault(value: Any) -> str | None:
    """An operator's attributes, by name."""
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return None
    return f"is {value!r}; allowed: a dict of the operator's attributes"


def dtype_fault(value: Any) -> str | None:
    """An element type; NumPy checks which exist."""
    names = [value] if isinstance(value, str) else value
    if isinstance(names, (list, tuple)) and names and all(isinstance(name, str) and name for name in names):
        return None
    return f"is {value!r}; allowed: a name such as 'float32', or one per input, such as ('float32', 'int64')"


def bounds_fault(value: Any) -> str | None:
    """Two numbers."""
    if (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(isinstance(bound, (int, float)) and not isinstance(bound, bool) for bound in value)
    ):
        return None
    return f"is {value!r}; allowed: two numbers, the lower one first, or None"


def limit_fault(value: Any) -> str | None:
    """A number of GFLOP."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return None
    return f"is {value!r}; allowed: a number of GFLOP above 0, or None"


def batch_size_fault(value: Any) -> str | None:
    """A batch size: a number, or an object that gives one for every epoch; checked by the sampler."""
    if callable(value) or in_a_file(value) or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return None
    return (
        f"is {value!r}; allowed: an integer of at least 1, or a function of the epoch such as d5.GrowingBatches, "
        "also by FILE.py:NAME"
    )


def in_a_file(value: Any) -> bool:
    """Whether it names an object in a file, which is looked up on use."""
    return isinstance(value, str) and ".py:" in value


def schedules_fault(value: Any) -> str | None:
    """Schedules by hyperparameter; which exist is checked on use."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return f"is {value!r}; allowed: a dict from hyperparameters to schedules, such as {{'lr': d5.Cosine(0.1)}}"
    for name, schedule in value.items():
        number = isinstance(schedule, (int, float)) and not isinstance(schedule, bool)
        if not number and (fault := component_fault(f"schedules[{name!r}]", "schedules", schedule)):
            return f"of {name!r}: {fault}"
    return None


def groups_fault(value: Any) -> str | None:
    """Parameter groups; `deep5.core.executors` checks their content."""
    if isinstance(value, (list, tuple)) or in_a_file(value):
        return None
    return f"is {value!r}; allowed: a list of d5.ParameterGroup, or FILE.py:NAME of one"


def positive_fault(value: Any) -> str | None:
    """A finite number above 0."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
        return None
    return f"is {value!r}; allowed: a number above 0, or None"


def share_fault(value: Any) -> str | None:
    """A fraction above 0 and below 1."""
    if isinstance(value, float) and 0 < value < 1:
        return None
    return f"is {value!r}; allowed: a fraction above 0 and below 1, such as 0.1, or None"


def decay_fault(value: Any) -> str | None:
    """A finite number of at least 0."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return None
    return f"is {value!r}; allowed: a number of at least 0, or None"


def precision_fault(value: Any) -> str | None:
    """The name of a precision."""
    return None if value in _PRECISIONS else _not_among(value, _PRECISIONS, ", or None")


def collective_fault(value: Any) -> str | None:
    """The name of a collective."""
    return None if value in _COLLECTIVE else _not_among(value, _COLLECTIVE)


def scenario_fault(value: Any) -> str | None:
    """The name of a scenario of MLPerf."""
    return None if value in _SCENARIOS else _not_among(value, _SCENARIOS)


def transport_fault(value: Any) -> str | None:
    """How requests reach a server."""
    return None if value in _TRANSPORTS else _not_among(value, _TRANSPORTS)


def rate_fault(value: Any) -> str | None:
    """A rate, or several in ascending order."""
    rates = value if isinstance(value, (list, tuple)) else [value]
    if rates and all(positive_fault(rate) is None for rate in rates) and list(rates) == sorted(set(rates)):
        return None
    return f"is {value!r}; allowed: queries per second above 0, such as 100 or, ascending, (50, 100, 200), or None"


def deadline_fault(value: Any) -> str | None:
    """Seconds, at least 0."""
    return None if decay_fault(value) is None else f"is {value!r}; allowed: seconds of at least 0, such as 0.002"


def timeout_fault(value: Any) -> str | None:
    """Seconds above 0."""
    return None if positive_fault(value) is None else f"is {value!r}; allowed: seconds above 0, such as 30"


def percentile_fault(value: Any) -> str | None:
    """A percentile."""
    if positive_fault(value) is None and value <= 100:
        return None
    return f"is {value!r}; allowed: a number above 0 and at most 100, or None"


def names_fault(value: Any) -> str | None:
    """Names, separated by commas in a string; checked on use."""
    names = value.split(",") if isinstance(value, str) else value
    if isinstance(names, (list, tuple)) and names and all(isinstance(name, str) and name.strip() for name in names):
        return None
    return f"is {value!r}; allowed: names such as 'ring,library', or None for all"


def launcher_fault(value: Any) -> str | None:
    """The name of a launcher."""
    return None if value in _LAUNCHERS else _not_among(value, _LAUNCHERS)


def _not_among(value: Any, names: Sequence[str], more: str = "") -> str:
    near = suggestion(value, names) if isinstance(value, str) else ""
    return f"is {value!r}; allowed: {', '.join(map(repr, names))}{more}{near}"


def loss_scale_fault(value: Any) -> str | None:
    """A positive number, or `dynamic`."""
    if value == "dynamic" or positive_fault(value) is None:
        return None
    return f"is {value!r}; allowed: a number above 0, 'dynamic', or None"


def master_weights_fault(value: Any) -> str | None:
    """True, False, or None."""
    if value is None or isinstance(value, bool):
        return None
    return f"is {value!r}; allowed: True (float32 master weights), False (the framework's own arithmetic), or None"


def init_fault(value: Any) -> str | None:
    """A file of weights."""
    if value is None or (isinstance(value, str) and value.endswith((".safetensors", ".onnx"))):
        return None
    return f"'init' is {value!r}; allowed: a file of weights, NAME.safetensors or NAME.onnx"


def device_fault(value: Any) -> str | None:
    """A device, such as `cpu`."""
    from deep5.core.tensors import device

    try:
        device(value)
    except UsageError as error:
        return f"'device': {error}"
    return None


def loss_fault(value: Any) -> str | None:
    """The name of a loss, FILE.py:NAME, or a function."""
    from deep5.networks.edit.loss import LOSSES

    if callable(value) or (isinstance(value, str) and (value in LOSSES or ".py:" in value)):
        return None
    tail = suggestion(value, LOSSES) if isinstance(value, str) else ""
    return f"is {value!r:.60}; allowed: {', '.join(LOSSES)}, FILE.py:NAME, or a function of the model's framework{tail}"


def component_fault(key: str, kind: str, value: Any) -> str | None:
    """A component: a name must be registered (nothing is loaded); an object is checked on use."""
    if key == "model" and (is_onnx_file(value) or is_pair(value)):
        return None
    if value is None or isinstance(value, (bool, int, float, complex, bytes, list, tuple, set, Mapping)):
        return f"{key!r} is {value!r}; allowed: the name of a component, a class, a function or an object"
    if not isinstance(value, str) or ".py:" in value:
        return None
    if kind not in KINDS:  # this kind has no registry
        return f"{key!r} is {value!r}; allowed: a function, or FILE.py:NAME"
    if key == "optimizer" and value.startswith("native:"):
        return None  # the framework checks its own optimizers
    names = registered(kind)
    if present_name(kind, value) in names:
        return None
    if key == "framework" and value.partition(":")[0] in names:
        return mode_fault(value)
    return f"unknown {KINDS[kind]} {value!r}; allowed: {', '.join(names)}, or FILE.py:NAME{suggestion(value, names)}"
