"""The keys of FIXED and MUTABLE: what each holds, and what is wrong with what it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deep5.core.errors import RecipeError, UsageError, brief, suggestion
from deep5.core.plugins import KINDS, mode_fault, registered

__all__ = ["STUDIED", "WORKLOAD", "Key", "allowed_keys", "base", "check_parts", "keys_of"]

_REQUIRED = object()

WORKLOAD = frozenset((
    "operator", "problems", "uses", "shapes", "attributes", "dtype", "bounds", "backward", "limit_gflop", "take",
))  # fmt: skip
"""The keys that say which operators a recipe of level 0 times: times of two workloads are not comparable."""

STUDIED = frozenset(("collective", "sizes", "algorithms", "op", "dtype", "segment"))
"""The keys that say what a recipe of collectives times: as with `WORKLOAD`."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a key holds.

    Attributes:
        kind: Of the component it names (a key of `KINDS`, or "candidates"), or None for a plain value.
        default: What stands there where the recipe says nothing.
        least: The smallest whole number allowed, or None where it holds no number.
        flag: Whether it holds True or False.
        optional: Whether None stands for nothing.
        fault: Says what is wrong with a value, or None: for what is none of the above.
    """

    kind: str | None = None
    default: Any = _REQUIRED
    least: int | None = None
    flag: bool = False
    optional: bool = False
    fault: Callable[[Any], str | None] | None = None

    @property
    def required(self) -> bool:
        """Whether a recipe has to say it."""
        return self.default is _REQUIRED


def _text_fault(value: Any) -> str | None:
    return None if isinstance(value, str) and value else f"is {value!r}; allowed: a text"


def _uses_fault(value: Any) -> str | None:
    """Which uses there are is known by the problems; a text holds them with commas between."""
    if isinstance(value, str) or (isinstance(value, (list, tuple)) and all(isinstance(use, str) for use in value)):
        return None
    return f"is {value!r}; allowed: a tuple such as ('training',)"


def _frameworks_fault(value: Any) -> str | None:
    """Names of registered frameworks, modes included; a text holds them with commas between."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        return f"is {value!r}; allowed: a tuple of names, such as ('pytorch', 'jax')"
    known = registered("frameworks")
    for name in names:
        if name.partition(":")[0] not in known:
            return f"holds the unknown framework {name!r}; allowed: {', '.join(known)}{suggestion(name, known)}"
        if ":" in name and (fault := mode_fault(name)) is not None:
            return f"holds {name!r}: {fault}"
    if len(set(names)) < len(names):
        return f"is {value!r}, a framework twice; allowed: each once"
    return None


def _shapes_fault(value: Any) -> str | None:
    if isinstance(value, (list, tuple)) and all(
        isinstance(shape, (list, tuple)) and all(type(extent) is int and extent >= 0 for extent in shape)
        for shape in value
    ):
        return None
    return f"is {value!r}; allowed: a shape an input, such as ((64, 64), (64, 64))"


def _attributes_fault(value: Any) -> str | None:
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return None
    return f"is {value!r}; allowed: a dict of the operator's attributes"


def _dtype_fault(value: Any) -> str | None:
    """Which element types there are is known by NumPy."""
    names = [value] if isinstance(value, str) else value
    if isinstance(names, (list, tuple)) and names and all(isinstance(name, str) and name for name in names):
        return None
    return f"is {value!r}; allowed: a name such as 'float32', or one an input, such as ('float32', 'int64')"


def _bounds_fault(value: Any) -> str | None:
    if (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(isinstance(bound, (int, float)) and not isinstance(bound, bool) for bound in value)
    ):
        return None
    return f"is {value!r}; allowed: two numbers, the lower one first, or None"


def _limit_fault(value: Any) -> str | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return None
    return f"is {value!r}; allowed: a number of GFLOP above 0, or None"


def batch_size_fault(value: Any) -> str | None:
    """What is wrong with a batch size: a number, or what gives one for every epoch; the sampler asks it."""
    if callable(value) or _in_a_file(value) or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return None
    return (
        f"is {value!r}; allowed: a whole number of at least 1, or a function of the epoch such as d5.GrowingBatches, "
        "also by FILE.py:NAME"
    )


def _in_a_file(value: Any) -> bool:
    """Whether it names something in a file, which is looked for when it is used."""
    return isinstance(value, str) and ".py:" in value


def _schedules_fault(value: Any) -> str | None:
    """Which schedules and hyperparameters there are is known when they are used."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return f"is {value!r}; allowed: a dict from hyperparameters to schedules, such as {{'lr': d5.Cosine(0.1)}}"
    for name, schedule in value.items():
        number = isinstance(schedule, (int, float)) and not isinstance(schedule, bool)
        if not number and (fault := _component_fault(f"schedules[{name!r}]", "schedules", schedule)):
            return f"of {name!r}: {fault}"
    return None


def _groups_fault(value: Any) -> str | None:
    """What is in them is known by `deep5.core.executors`."""
    if isinstance(value, (list, tuple)) or _in_a_file(value):
        return None
    return f"is {value!r}; allowed: a list of d5.ParameterGroup, or FILE.py:NAME of one"


def _positive_fault(value: Any) -> str | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
        return None
    return f"is {value!r}; allowed: a number above 0, or None"


def _decay_fault(value: Any) -> str | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return None
    return f"is {value!r}; allowed: a number of at least 0, or None"


def _precision_fault(value: Any) -> str | None:
    return None if value in _PRECISIONS else f"is {value!r}; allowed: {', '.join(map(repr, _PRECISIONS))}, or None"


def _collective_fault(value: Any) -> str | None:
    return None if value in _COLLECTIVE else f"is {value!r}; allowed: {', '.join(map(repr, _COLLECTIVE))}"


def _names_fault(value: Any) -> str | None:
    """Which names there are is known by what they name; a text holds them with commas between."""
    names = value.split(",") if isinstance(value, str) else value
    if isinstance(names, (list, tuple)) and names and all(isinstance(name, str) and name.strip() for name in names):
        return None
    return f"is {value!r}; allowed: names such as 'ring,library', or None for all"


def _launcher_fault(value: Any) -> str | None:
    return None if value in _LAUNCHERS else f"is {value!r}; allowed: {', '.join(map(repr, _LAUNCHERS))}"


def _loss_scale_fault(value: Any) -> str | None:
    if value == "dynamic" or _positive_fault(value) is None:
        return None
    return f"is {value!r}; allowed: a number above 0, 'dynamic', or None"


_PRECISIONS = ("float32", "float64", "bfloat16", "float16")
_COLLECTIVE = ("all_reduce",)
_LAUNCHERS = ("mpiexec", "torchrun", "threads")
_RANKS = {
    "ranks": Key(default=None, least=1, optional=True),
    "launcher": Key(default="mpiexec", fault=_launcher_fault),
}
_TRAINING = {
    "model": Key(kind="networks"),
    "dataset": Key(kind="datasets"),
    "train_sampler": Key(kind="samplers", default="shuffle"),
    "validation_sampler": Key(kind="samplers", default="ordered"),
    "train_transforms": Key(kind="transforms", default=()),
    "test_transforms": Key(kind="transforms", default=()),
    "prefetch": Key(default=0, least=0),
    "epochs": Key(least=1),
    "batch_size": Key(fault=batch_size_fault),
    "accumulate": Key(default=1, least=1),
    "framework": Key(kind="frameworks", default=None),
    "executor": Key(kind="frameworks", default=None),
    "device": Key(default="cpu"),
    "threads": Key(default=None, least=1),
    "deterministic": Key(default=True, flag=True),
    "tf32": Key(default=False, flag=True),
    "precision": Key(default=None, optional=True, fault=_precision_fault),
    "optimizer": Key(kind="optimizers"),
    "scheme": Key(kind="schemes", default=None, optional=True),
    "compression": Key(kind="compressors", default=None, optional=True),
    "schedules": Key(default={}, fault=_schedules_fault),
    "parameter_groups": Key(default=(), fault=_groups_fault),
    "gradient_modifier": Key(kind="gradient_modifiers", default=None, optional=True),
    "clip_norm": Key(default=None, optional=True, fault=_positive_fault),
    "clip_value": Key(default=None, optional=True, fault=_positive_fault),
    "weight_decay": Key(default=None, optional=True, fault=_decay_fault),
    "loss_scale": Key(default=None, optional=True, fault=_loss_scale_fault),
    "events": Key(kind="events", default=()),
    "init": Key(default=None),
    "seed": Key(default=0, least=0),
    **_RANKS,
}
_TIMING = {
    "candidate": Key(kind="candidates"),
    "baseline": Key(kind="candidates"),
    "rounds": Key(default=60, least=1),
    "steps": Key(default=20, least=1),
    "threads": Key(default=1, least=1),
    "seed": Key(default=0, least=0),
    **_RANKS,
}
_OPERATORS = {
    "operator": Key(default=None, optional=True, fault=_text_fault),
    "problems": Key(default=None, optional=True, fault=_text_fault),
    "uses": Key(default=(), fault=_uses_fault),
    "shapes": Key(default=(), fault=_shapes_fault),
    "attributes": Key(default={}, fault=_attributes_fault),
    "dtype": Key(default="float32", fault=_dtype_fault),
    "bounds": Key(default=None, optional=True, fault=_bounds_fault),
    "backward": Key(default=False, flag=True),
    "bare": Key(kind="candidates", default=None, optional=True),
    "frameworks": Key(default=("reference",), fault=_frameworks_fault),
    "limit_gflop": Key(default=None, optional=True, fault=_limit_fault),
    "take": Key(default=None, least=1, optional=True),
    "cold": Key(default=False, flag=True),
    "rigorous": Key(default=False, flag=True),
    "processes": Key(default=8, least=1),
    "rounds": Key(default=30, least=1),
    "threads": Key(default=1, least=1),
    "device": Key(default="cpu"),
    "pictures": Key(default=False, flag=True),
    "box": Key(default=None, optional=True, fault=_text_fault),
    "seed": Key(default=0, least=0),
}
_COLLECTIVES = {
    "collective": Key(fault=_collective_fault),
    "sizes": Key(default=None, optional=True, fault=_text_fault),
    "algorithms": Key(default=None, optional=True, fault=_names_fault),
    "op": Key(default="sum", fault=_text_fault),
    "dtype": Key(default="float32", fault=_text_fault),
    "segment": Key(default=None, optional=True, fault=_text_fault),
    "rounds": Key(default=20, least=1),
    "seed": Key(default=0, least=0),
    "ranks": Key(default=2, least=2),
    "launcher": Key(default="mpiexec", fault=_launcher_fault),
}


# Where these name no component there is none; where another key names none, one is taken by default.
_ABSENT = ("compression", "gradient_modifier", "bare")


def keys_of(*parts: Mapping[str, Any]) -> Mapping[str, Key]:
    """The keys of a recipe: it trains a network, times a candidate against a baseline, operators, or collectives."""
    if any("candidate" in part for part in parts):
        return _TIMING
    if any("operator" in part or "problems" in part for part in parts):
        return _OPERATORS
    return _COLLECTIVES if any("collective" in part for part in parts) else _TRAINING


def base(key: str) -> str:
    """`"optimizer_kwargs"` -> `"optimizer"`."""
    return key.removesuffix("_args").removesuffix("_kwargs")


def allowed_keys(keys: Mapping[str, Key]) -> list[str]:
    """Every key, those for arguments included."""
    return [
        name for key, about in keys.items() for name in ([key, f"{key}_args", f"{key}_kwargs"] if about.kind else [key])
    ]


def check_parts(fixed: Mapping[str, Any], mutable: Mapping[str, Any], where: Callable[[str], str]) -> None:
    """Hold both parts against the table of keys; nothing that they name is loaded.

    Args:
        fixed: FIXED.
        mutable: MUTABLE.
        where: From a key to its file and line, ending in `": "`, or an empty text.

    Raises:
        RecipeError: The first thing that is wrong.
    """
    keys = keys_of(fixed, mutable)
    allowed = allowed_keys(keys)
    for what, part in (("FIXED", fixed), ("MUTABLE", mutable)):
        for key, value in part.items():
            if key not in allowed:
                raise RecipeError(
                    f"{where(key)}unknown key {key!r} in {what}; allowed: {', '.join(keys)}, each component with "
                    f"_args and _kwargs{suggestion(key, allowed)}"
                )
            fault = _fault(key, keys.get(key), value)
            if fault is not None:
                raise RecipeError(f"{where(key)}{fault}")
    both = {**fixed, **mutable}
    missing = [key for key, about in keys.items() if about.required and key not in both]
    if missing:
        raise RecipeError(
            f"{where('')}the key {missing[0]!r} is missing; allowed: in FIXED or in MUTABLE, one of them; "
            f"remedy: add {missing[0]!r}"
        )
    for key in _ABSENT:
        for name in (f"{key}_args", f"{key}_kwargs"):
            if both.get(key) is None and both.get(name):
                raise RecipeError(
                    f"{where(name)}{name!r} is {brief(both[name])}, and there is no {key!r}; allowed: none where there "
                    f"is nothing to give them to; remedy: name the {key!r}, or leave {name!r} out"
                )
    if keys is _TRAINING:
        given = [key for key in ("framework", "executor") if both.get(key) is not None]
        if len(given) != 1:
            got = "both" if given else "none of them"
            at = where("executor" if given else "")
            raise RecipeError(f"{at}the recipe names {got}; allowed: one of 'framework' and 'executor'")
    if keys is _OPERATORS and both.get("operator") is None and both.get("problems") is None:
        raise RecipeError(
            f"{where('operator')}the recipe names neither 'operator' nor 'problems'; allowed: one or both"
        )


def _fault(key: str, about: Key | None, value: Any) -> str | None:
    """What is wrong with the value of a known key, or None."""
    if about is None:
        if key.endswith("_kwargs"):
            if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
                return f"{key!r} is {value!r}; allowed: a dict of keyword arguments, with strings as keys"
        elif not isinstance(value, (list, tuple)):
            return f"{key!r} is {value!r}; allowed: a tuple or list of arguments"
        return None
    if value is None and about.optional:
        return None
    if about.fault is not None:
        fault = about.fault(value)
        return fault and f"{key!r} {fault}"
    if about.least is not None:
        if isinstance(value, bool) or not isinstance(value, int) or value < about.least:
            return f"{key!r} is {value!r}; allowed: a whole number of at least {about.least}"
        return None
    if about.flag:
        return None if isinstance(value, bool) else f"{key!r} is {value!r}; allowed: True or False"
    if about.kind is None:
        return _init_fault(value) if key == "init" else _device_fault(value)
    if key in ("events", "train_transforms", "test_transforms") and isinstance(value, (list, tuple)):
        return next((fault for item in value if (fault := _component_fault(key, about.kind, item))), None)
    if value is None and key in ("framework", "executor"):
        return None
    return _component_fault(key, about.kind, value)


def _init_fault(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.endswith((".safetensors", ".onnx"))):
        return None
    return f"'init' is {value!r}; allowed: a file of weights, NAME.safetensors or NAME.onnx"


def _device_fault(value: Any) -> str | None:
    from deep5.core.tensors import device

    try:
        device(value)
    except UsageError as error:
        return f"'device': {error}"
    return None


def _component_fault(key: str, kind: str, value: Any) -> str | None:
    """A name must be registered (nothing is loaded); what is an object is seen when it is used."""
    if value is None or isinstance(value, (bool, int, float, complex, bytes, list, tuple, set, Mapping)):
        return f"{key!r} is {value!r}; allowed: the name of a component, a class, a function or an object"
    if not isinstance(value, str) or ".py:" in value:
        return None
    if kind not in KINDS:  # there are none to be registered
        return f"{key!r} is {value!r}; allowed: a function, or FILE.py:NAME"
    if key == "optimizer" and value.startswith("native:"):
        return None  # the framework knows its own
    names = registered(kind)
    if value in names:
        return None
    if key == "framework" and value.partition(":")[0] in names:
        return mode_fault(value)
    return f"unknown {KINDS[kind]} {value!r}; allowed: {', '.join(names)}, or FILE.py:NAME{suggestion(value, names)}"
