"""The keys of FIXED and MUTABLE: their values, and the errors in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deep5.core.deep500 import PAGE
from deep5.core.errors import RecipeError, brief, suggestion
from deep5.core.plugins import KINDS
from deep5.recipe import faults
from deep5.recipe.meant import meant_key, other_optimizers

__all__ = [
    "CODE",
    "COLLECTIVES",
    "OPERATORS",
    "STUDIED",
    "TRAINING",
    "WORKLOAD",
    "Key",
    "Kind",
    "allowed_keys",
    "base",
    "check_keys",
    "check_parts",
    "component_kinds",
    "kind_of",
]

_REQUIRED = object()

WORKLOAD = frozenset((
    "operator", "problems", "uses", "shapes", "attributes", "dtype", "bounds", "backward", "limit_gflop", "take",
))  # fmt: skip
"""Keys that determine the timed operators of a level-0 recipe: times of two workloads are not comparable."""

STUDIED = frozenset(("collective", "sizes", "algorithms", "op", "dtype", "segment"))
"""Keys that determine the measurement of a recipe of collectives, like `WORKLOAD`."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """Definition of a key.

    Attributes:
        kind: Kind of the component it names (a key of `KINDS`, or "candidates"), or None for a plain value.
        default: Value if the recipe omits the key.
        least: Smallest allowed integer, or None if it is not a number.
        most: Largest allowed integer, or None.
        flag: Whether it is True or False.
        optional: Whether None means that there is no value.
        fault: Returns the error in a value, or None; for values that the fields above do not describe.
    """

    kind: str | None = None
    default: Any = _REQUIRED
    least: int | None = None
    most: int | None = None
    flag: bool = False
    optional: bool = False
    fault: Callable[[Any], str | None] | None = None

    @property
    def required(self) -> bool:
        """Whether a recipe must set it."""
        return self.default is _REQUIRED


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The keys of one kind of recipe.

    Attributes:
        name: What a recipe of this kind times or trains.
        keys: All keys, except those for arguments.
        measured: Keys that determine the measurement: two results are comparable only if these are in FIXED.
        fault: From all parts, the key that conflicts with others and the error; None if there is none.
    """

    name: str
    keys: Mapping[str, Key]
    measured: frozenset[str] = frozenset()
    fault: Callable[[Mapping[str, Any]], tuple[str, str] | None] = field(default=lambda parts: None)


def _two_executors(parts: Mapping[str, Any]) -> tuple[str, str] | None:
    given = [key for key in ("framework", "executor") if parts.get(key) is not None]
    if len(given) == 1:
        return None
    got = "both" if given else "none of them"
    return "executor" if given else "", f"the recipe names {got}; allowed: one of 'framework' and 'executor'"


def _no_operator(parts: Mapping[str, Any]) -> tuple[str, str] | None:
    if parts.get("operator") is not None or parts.get("problems") is not None:
        return None
    return "operator", "the recipe names neither 'operator' nor 'problems'; allowed: one or both"


_RANKS = {
    "ranks": Key(default=None, least=1, optional=True),
    "launcher": Key(default="mpiexec", fault=faults.launcher_fault),
}
_TRAINING = {
    "model": Key(kind="networks"),
    "loss": Key(default=None, optional=True, fault=faults.loss_fault),
    "dataset": Key(kind="datasets"),
    "train_sampler": Key(kind="samplers", default="shuffle"),
    "validation_sampler": Key(kind="samplers", default="ordered"),
    "train_transforms": Key(kind="transforms", default=()),
    "test_transforms": Key(kind="transforms", default=()),
    "prefetch": Key(default=0, least=0),
    # The order of all samples in all epochs is hashed before the first one.
    "epochs": Key(least=1, most=1_000_000),
    "batch_size": Key(fault=faults.batch_size_fault),
    "accumulate": Key(default=1, least=1),
    "framework": Key(kind="frameworks", default=None),
    "executor": Key(kind="frameworks", default=None),
    "device": Key(default="cpu"),
    "threads": Key(default=None, least=1),
    "deterministic": Key(default=True, flag=True),
    "tf32": Key(default=False, flag=True),
    "precision": Key(default=None, optional=True, fault=faults.precision_fault),
    "optimizer": Key(kind="optimizers"),
    "scheme": Key(kind="schemes", default=None, optional=True),
    "compression": Key(kind="compressors", default=None, optional=True),
    "schedules": Key(default={}, fault=faults.schedules_fault),
    "parameter_groups": Key(default=(), fault=faults.groups_fault),
    "gradient_modifier": Key(kind="gradient_modifiers", default=None, optional=True),
    "clip_norm": Key(default=None, optional=True, fault=faults.positive_fault),
    "clip_value": Key(default=None, optional=True, fault=faults.positive_fault),
    "weight_decay": Key(default=None, optional=True, fault=faults.decay_fault),
    "coupled_weight_decay": Key(default=None, optional=True, fault=faults.decay_fault),
    "loss_scale": Key(default=None, optional=True, fault=faults.loss_scale_fault),
    "master_weights": Key(default=None, optional=True, fault=faults.master_weights_fault),
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
    "operator": Key(default=None, optional=True, fault=faults.text_fault),
    "problems": Key(default=None, optional=True, fault=faults.text_fault),
    "uses": Key(default=(), fault=faults.uses_fault),
    "shapes": Key(default=(), fault=faults.shapes_fault),
    "attributes": Key(default={}, fault=faults.attributes_fault),
    "dtype": Key(default="float32", fault=faults.dtype_fault),
    "bounds": Key(default=None, optional=True, fault=faults.bounds_fault),
    "backward": Key(default=False, flag=True),
    "bare": Key(kind="candidates", default=None, optional=True),
    "frameworks": Key(default=("reference",), fault=faults.frameworks_fault),
    "limit_gflop": Key(default=None, optional=True, fault=faults.limit_fault),
    "take": Key(default=None, least=1, optional=True),
    "cold": Key(default=False, flag=True),
    "rigorous": Key(default=False, flag=True),
    "processes": Key(default=8, least=1),
    "rounds": Key(default=30, least=1),
    "threads": Key(default=1, least=1),
    "device": Key(default="cpu"),
    "pictures": Key(default=False, flag=True),
    "box": Key(default=None, optional=True, fault=faults.text_fault),
    "seed": Key(default=0, least=0),
}
_COLLECTIVES = {
    "collective": Key(fault=faults.collective_fault),
    "sizes": Key(default=None, optional=True, fault=faults.text_fault),
    "algorithms": Key(default=None, optional=True, fault=faults.names_fault),
    "op": Key(default="sum", fault=faults.text_fault),
    "dtype": Key(default="float32", fault=faults.text_fault),
    "segment": Key(default=None, optional=True, fault=faults.text_fault),
    "rounds": Key(default=20, least=1),
    "seed": Key(default=0, least=0),
    "ranks": Key(default=2, least=2),
    "launcher": Key(default="mpiexec", fault=faults.launcher_fault),
}


TRAINING = Kind(name="training", keys=_TRAINING, fault=_two_executors)
"""A recipe that trains a network."""

CODE = Kind(name="code", keys=_TIMING)
"""A recipe that times a candidate against a baseline."""

OPERATORS = Kind(name="operators", keys=_OPERATORS, measured=WORKLOAD, fault=_no_operator)
"""A recipe that times operators (level 0)."""

COLLECTIVES = Kind(name="collectives", keys=_COLLECTIVES, measured=STUDIED)
"""A recipe that times a collective among ranks."""

# If these keys name no component, there is none; other keys have a default component.
_ABSENT = ("compression", "gradient_modifier", "bare")


def kind_of(*parts: Mapping[str, Any]) -> Kind:
    """The kind of the recipe that has these parts."""
    keys = {key for part in parts for key in part}
    if "candidate" in keys:
        return CODE
    if "operator" in keys or "problems" in keys:
        return OPERATORS
    return COLLECTIVES if "collective" in keys else TRAINING


def base(key: str) -> str:
    """`"optimizer_kwargs"` -> `"optimizer"`."""
    return key.removesuffix("_args").removesuffix("_kwargs")


def allowed_keys(keys: Mapping[str, Key]) -> list[str]:
    """All keys, including those for arguments."""
    return [
        name for key, about in keys.items() for name in ([key, f"{key}_args", f"{key}_kwargs"] if about.kind else [key])
    ]


def check_parts(fixed: Mapping[str, Any], mutable: Mapping[str, Any], where: Callable[[str], str]) -> None:
    """Check both parts against the table of keys, without loading any component.

    Args:
        fixed: FIXED.
        mutable: MUTABLE.
        where: Returns the file and line of a key, ending in `": "`, or an empty string.

    Raises:
        RecipeError: The first error found.
    """
    kind, both = kind_of(fixed, mutable), {**fixed, **mutable}
    keys = kind.keys
    for what, part in (("FIXED", fixed), ("MUTABLE", mutable)):
        check_keys(part, what, keys, both, where)
        for key, value in part.items():
            fault = _fault(key, keys.get(key), value)
            if fault is not None:
                raise RecipeError(f"{where(key)}{fault}")
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
                    f"{where(name)}{name!r} is {brief(both[name])}, but {key!r} is not set; allowed: only with "
                    f"{key!r}; remedy: set {key!r}, or omit {name!r}"
                )
    if (wrong := kind.fault(both)) is not None:
        key, fault = wrong
        raise RecipeError(f"{where(key)}{fault}")


def check_keys(
    part: Mapping[str, Any],
    what: str,
    keys: Mapping[str, Key],
    parts: Mapping[str, Any],
    where: Callable[[str], str],
    more: tuple[str, ...] = (),
) -> None:
    """Check that a part of a recipe has only known keys.

    Args:
        part: FIXED, MUTABLE, or the changes of a size.
        what: Its name in messages.
        keys: All keys, except those for arguments.
        parts: The recipe's values by key.
        where: As for `check_parts`.
        more: Further allowed keys.

    Raises:
        RecipeError: The first unknown key; the message suggests the one that was probably meant.
    """
    allowed = [*allowed_keys(keys), *more]
    for key, value in part.items():
        if key in allowed:
            continue
        name, dot, entry = key.partition(".")
        settable = dot and name in allowed and name.endswith("_kwargs")  # as --set writes it
        meant = (name, entry) if settable else meant_key(key, allowed, component_kinds(keys), {**parts, **part})
        raise RecipeError(
            f"{where(key)}unknown key {key!r} in {what}; allowed: {', '.join((*keys, *more))}, each component with "
            f"_args and _kwargs{_asked(key, meant, value) or _of_another(key, value, {**parts, **part})}"
        )


def component_kinds(keys: Mapping[str, Key]) -> dict[str, str]:
    """The kind of component by key, for the keys that name one."""
    return {key: about.kind for key, about in keys.items() if about.kind in KINDS}


def _of_another(key: str, value: Any, parts: Mapping[str, Any]) -> str:
    """As `other_optimizers`, if the recipe has an optimizer."""
    chosen = parts.get("optimizer")
    return "" if chosen is None else other_optimizers(key, value, chosen, as_setting=False, near=True)


def _asked(got: str, meant: tuple[str, str] | None, value: Any) -> str:
    """The tail of a message that suggests a key as it is written in a recipe."""
    if meant is None:
        return ""
    key, argument = meant
    if got == key.removesuffix("s"):  # model_kwarg, optimizer_arg
        return f"; did you mean {key!r}? Deep500's {got!r} is {key!r} in deep5 ({PAGE})"
    return f"; did you mean {key!r}?" if not argument else f"; did you mean {key!r}: {{{argument!r}: {brief(value)}}}?"


def _fault(key: str, about: Key | None, value: Any) -> str | None:
    """The error in the value of a known key, or None."""
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
        high = math.inf if about.most is None else about.most
        if isinstance(value, bool) or not isinstance(value, int) or not about.least <= value <= high:
            end = "" if about.most is None else f" and at most {about.most}"
            return f"{key!r} is {brief(value)}; allowed: an integer of at least {about.least}{end}"
        return None
    if about.flag:
        near = suggestion(value, ("True", "False")) if isinstance(value, str) else ""
        return None if isinstance(value, bool) else f"{key!r} is {value!r}; allowed: True or False{near}"
    if about.kind is None:
        return faults.init_fault(value) if key == "init" else faults.device_fault(value)
    if key in ("events", "train_transforms", "test_transforms") and isinstance(value, (list, tuple)):
        return next((fault for item in value if (fault := faults.component_fault(key, about.kind, item))), None)
    if value is None and key in ("framework", "executor"):
        return None
    return faults.component_fault(key, about.kind, value)
