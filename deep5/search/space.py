"""A search space: parameters of a recipe's mutable part, each with a range or choices, possibly under a condition."""

from __future__ import annotations

import ast
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from deep5.core.canonical import canonical
from deep5.core.errors import UsageError, brief, suggestion

__all__ = ["KINDS", "Condition", "Parameter", "Space", "parse_parameter", "read_space"]

KINDS = ("uniform", "log", "int", "logint", "choice")
"""How a parameter is written: `uniform(0, 0.5)`, `log(1e-4, 1e-1)`, `int(1, 8)`, `logint(16, 1024)`, `choice(a, b)`."""

_EXAMPLES = "uniform(0, 0.5), log(1e-4, 1e-1), int(1, 8), logint(16, 1024), choice(adam, momentum)"
_LARGEST = 2**53  # integers up to here are exact as floats, which samplers compute with
_MOST_VALUES = 10_000
_WRITTEN = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)
_CONDITION = re.compile(r"\s*([\w.]+)\s*(?:=\s*(?P<one>[^=].*)|\bin\s*\((?P<several>.*)\))\s*", re.DOTALL)
_SPACE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Condition:
    """When a parameter applies: while another one has one of these values.

    Attributes:
        key: The other parameter.
        values: The values.
    """

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of the search.

    Attributes:
        key: The setting, such as `optimizer_kwargs.lr`.
        kind: One of `KINDS`.
        low: Least value of a range; 0 for choices.
        high: Greatest value of a range; for choices, the number of values minus 1.
        values: All values of `choice`, or of a range with a number of values, in order; empty: all of the range.
        condition: When it applies; None: always.
        text: As it was written.
    """

    key: str
    kind: str
    low: float
    high: float
    values: tuple[Any, ...] = ()
    condition: Condition | None = None
    text: str

    @property
    def is_integer(self) -> bool:
        """Whether a range has integers only."""
        return self.kind in ("int", "logint")

    @property
    def is_log(self) -> bool:
        """Whether the values of a range are evenly spread over its logarithm."""
        return self.kind in ("log", "logint")

    @property
    def steps(self) -> int:
        """Number of values, if they can be counted; 0 for a range of real numbers."""
        if self.values:
            return len(self.values)
        return int(self.high) - int(self.low) + 1 if self.is_integer else 0

    def at(self, position: float) -> Any:
        """The value at a position: equal shares of [0, 1) belong to equal shares of the range, on its scale.

        Args:
            position: 0 to 1.

        >>> parse_parameter("lr", "log(1e-4, 1e-1)").at(1.0), parse_parameter("depth", "int(1, 4)").at(0.74)
        (0.1, 3)
        """
        if self.values:
            return self.values[min(int(position * len(self.values)), len(self.values) - 1)]
        low, high = (self.low - 0.5, self.high + 0.5) if self.is_integer else (self.low, self.high)
        if self.is_log:
            value = math.exp(math.log(low) + position * (math.log(high) - math.log(low)))
        else:
            value = low + position * (high - low)
        value = min(max(value, self.low), self.high)
        return min(max(round(value), int(self.low)), int(self.high)) if self.is_integer else value

    def position(self, value: Any) -> float:
        """The position at which `at` returns a value; of equal ones, the middle.

        Args:
            value: One that `at` returns.

        >>> round(parse_parameter("lr", "log(1e-4, 1e-1)").position(1e-3), 12)
        0.333333333333
        """
        if self.values:
            return (self.number(value) + 0.5) / len(self.values)
        low, high = (self.low - 0.5, self.high + 0.5) if self.is_integer else (self.low, self.high)
        if self.is_log:
            return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
        return float((value - low) / (high - low))

    def number(self, value: Any) -> float:
        """A value as a number that samplers compute with: itself, or its position among `values`.

        Args:
            value: One that `at` returns.

        Raises:
            UsageError: The parameter cannot have this value.
        """
        if self.values:
            for place, own in enumerate(self.values):
                if own == value and type(own) is type(value):
                    return place
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and self.low <= value <= self.high:
            return value
        raise UsageError(f"{self.key} is {brief(value)}; allowed: {self.text}")


@dataclass(frozen=True)
class Space:
    """The parameters of a search, each after the ones that its condition depends on.

    Attributes:
        parameters: By key.
    """

    parameters: Mapping[str, Parameter]

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Space:
        """Read and check a space.

        Args:
            texts: By key, how its values are written.

        Raises:
            UsageError: A parameter that cannot be read, a condition on something that is not a parameter with listed
                values, or conditions that depend on each other.
        """
        if not texts:
            raise UsageError(f"a space without parameters; allowed: at least one, such as lr=log(1e-4, 1e-1); {_HOW}")
        made = {key: parse_parameter(key, text) for key, text in texts.items()}
        for own in made.values():
            if own.condition is not None:
                _check_condition(own, own.condition, made)
        ordered: dict[str, Parameter] = {}
        while len(ordered) < len(made):
            waiting = [own for own in made.values() if own.key not in ordered]
            ready = [own for own in waiting if own.condition is None or own.condition.key in ordered]
            if not ready:
                left = ", ".join(key for key in made if key not in ordered)
                raise UsageError(f"the conditions of {left} depend on each other; allowed: a condition on another one")
            ordered |= {own.key: own for own in ready}
        return cls(ordered)

    def texts(self) -> dict[str, str]:
        """By key, as written; `of` reads it."""
        return {key: own.text for key, own in self.parameters.items()}

    def chosen(self, positions: Mapping[str, float]) -> dict[str, Any]:
        """The settings at these positions: values of all parameters that apply.

        Args:
            positions: By key, 0 to 1.
        """
        settings: dict[str, Any] = {}
        for key, own in self.parameters.items():
            if self.applies(own, settings):
                settings[key] = own.at(positions[key])
        return settings

    @staticmethod
    def applies(parameter: Parameter, settings: Mapping[str, Any]) -> bool:
        """Whether a parameter has a value, given the values of the parameters before it."""
        condition = parameter.condition
        return condition is None or (condition.key in settings and settings[condition.key] in condition.values)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Check stored settings: exactly the parameters that apply, within their ranges.

        Raises:
            UsageError: The first difference.
        """
        due = [key for key, own in self.parameters.items() if self.applies(own, settings)]
        if sorted(due) != sorted(settings):
            raise UsageError(f"settings of {', '.join(sorted(settings)) or 'nothing'}; allowed: of {', '.join(due)}")
        for key in due:
            self.parameters[key].number(settings[key])

    @cached_property
    def grid(self) -> tuple[dict[str, Any], ...]:
        """All combinations of values, the last parameter changing fastest.

        Raises:
            UsageError: A range of real numbers, whose values cannot be counted, or more than 10^6 combinations.
        """
        for key, own in self.parameters.items():
            if not own.steps:
                raise UsageError(
                    f"a grid over {key}={own.text}, whose values cannot be counted; allowed: choice(…), int(…), or a "
                    f"range with a number of values; remedy: {key}={own.text.partition(')')[0]}, 5)"
                )
        found = []
        for settings in self._combinations(list(self.parameters.values()), {}):
            found.append(settings)
            if len(found) > 1_000_000:
                raise UsageError("a grid of more than 1000000 combinations; allowed: fewer; remedy: another sampler")
        return tuple(found)

    def _combinations(self, left: list[Parameter], settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if not left:
            yield settings
            return
        own, *others = left
        if not self.applies(own, settings):
            yield from self._combinations(others, settings)
            return
        listed = own.values or range(int(own.low), int(own.high) + 1)
        for value in listed:
            yield from self._combinations(others, {**settings, own.key: value})


_HOW = "remedy: --param 'optimizer_kwargs.lr=log(1e-4, 1e-1)'"


def parse_parameter(key: str, text: str) -> Parameter:
    """Read a parameter: a range or choices, then possibly ` if KEY=VALUE` or ` if KEY in (VALUE, VALUE)`.

    A range may end with a number of values, which are evenly spread on its scale: `log(1e-4, 1e-1, 4)`.

    Args:
        key: The setting.
        text: Its values.

    Raises:
        UsageError: What cannot be read, an empty or an infinite range, or a value twice.

    >>> parse_parameter("optimizer_kwargs.lr", "log(1e-4, 1e-1, 4)").values
    (0.0001, 0.001, 0.01, 0.1)
    >>> parse_parameter("optimizer_kwargs.momentum", "uniform(0.5, 1) if optimizer in (momentum, nesterov)").condition
    Condition(key='optimizer', values=('momentum', 'nesterov'))
    """
    if not isinstance(text, str):
        raise UsageError(f"{key} is {brief(text)}; allowed: a string such as {_EXAMPLES}")
    head, *rest = re.split(r"(?<=\))\s+if\s+", text, maxsplit=1)
    match = _WRITTEN.fullmatch(head)
    if match is None:
        raise UsageError(f"{key}={text!r:.120} cannot be read; allowed: {_EXAMPLES}")
    kind, written = match[1], _values(match[2])
    if kind not in KINDS:
        raise UsageError(
            f"{key}={text!r:.120}: {kind!r} is not a kind of range; allowed: {_EXAMPLES}{suggestion(kind, KINDS)}"
        )
    condition = _read_condition(key, rest[0]) if rest else None
    about: dict[str, Any] = {"key": key, "kind": kind, "condition": condition, "text": " ".join(text.split())}
    if kind == "choice":
        try:
            # As they are read from the trials: a tuple becomes a list.
            written = json.loads(json.dumps(written, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{key}={text!r:.120}; allowed: finite numbers, strings, True, False, None, and lists of them"
            ) from error
        if any(value in ("nan", "inf", "-inf", "+inf") for value in written):
            raise UsageError(f"{key}={text!r:.120}; allowed: finite numbers")
        if not written or len({json.dumps(canonical(value, strict=False)) for value in written}) < len(written):
            raise UsageError(f"{key}={text!r:.120}; allowed: choices, each once, such as choice(adam, momentum)")
        return Parameter(low=0, high=len(written) - 1, values=tuple(written), **about)
    low, high, count = _bounds(key, text, kind, written)
    made = Parameter(low=low, high=high, **about)
    return made if count is None else Parameter(low=low, high=high, values=_spread(made, count), **about)


def read_space(path: str | Path) -> dict[str, str]:
    """Read a TOML file with a table `[parameters]`: keys as settings, quoted if they have dots, and their values.

    Args:
        path: The file.

    Raises:
        UsageError: It cannot be read, or does not contain that table.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_SPACE_BYTES + 1)
        document = tomllib.loads(data.decode())
    except OSError as error:
        raise UsageError(f"cannot read the space {path}: {error.strerror}; allowed: a TOML file") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"the space {path} is not TOML: {error}; allowed: {_FILE}") from error
    table = document.get("parameters")
    if not isinstance(table, dict) or len(document) != 1 or len(data) > _SPACE_BYTES:
        raise UsageError(f"the space {path} has {brief(sorted(document))}; allowed: one table, {_FILE}")
    found = dict(_flat(table))
    for key, text in found.items():
        if not isinstance(text, str):
            raise UsageError(f"the space {path}: {key} is {brief(text)}; allowed: a string such as {_EXAMPLES}")
    return found


_FILE = """[parameters], with lines such as "optimizer_kwargs.lr" = "log(1e-4, 1e-1)\""""


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with dots that are not quoted are nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _values(text: str) -> list[Any]:
    """Values separated by commas: Python literals, or else strings."""
    if not text.strip():
        return []
    try:
        return list(ast.literal_eval(f"[{text}]"))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return [_value(word) for word in text.split(",")]


def _value(word: str) -> Any:
    try:
        return ast.literal_eval(word.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return word.strip()


def _read_condition(key: str, text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    values = [] if match is None else [_value(match["one"])] if match["one"] is not None else _values(match["several"])
    if match is None or not values or "" in values:
        raise UsageError(
            f"{key}: the condition {text!r:.80} cannot be read; allowed: if optimizer=adam, or if optimizer in (adam, "
            "momentum)"
        )
    return Condition(key=match[1], values=tuple(values))


def _check_condition(own: Parameter, condition: Condition, made: Mapping[str, Parameter]) -> None:
    other = made.get(condition.key)
    if other is None or not other.steps:
        listed = [key for key, one in made.items() if one.steps and key != own.key]
        raise UsageError(
            f"{own.key} depends on {condition.key!r}; allowed: a parameter whose values can be counted"
            f"{': ' + ', '.join(listed) if listed else ''}{suggestion(condition.key, listed)}"
        )
    for value in condition.values:
        try:
            other.number(value)
        except UsageError as error:
            raise UsageError(f"{own.key} depends on {condition.key}={value}: {error}") from error


def _bounds(key: str, text: str, kind: str, written: Sequence[Any]) -> tuple[float, float, int | None]:
    shown = f"{key}={text!r:.120}"
    written = [float(v) if isinstance(v, str) and v.lstrip("+-") in ("inf", "nan") else v for v in written]
    if len(written) not in (2, 3) or not all(_is_number(value) for value in written):
        raise UsageError(f"{shown}; allowed: {kind}(least, greatest), or {kind}(least, greatest, number of values)")
    low, high, *more = written
    if not all(math.isfinite(value) for value in (low, high)):
        raise UsageError(f"{shown} is an infinite range; allowed: finite bounds")
    if not low < high:
        raise UsageError(f"{shown} is an empty range; allowed: a least value below the greatest; remedy: --set {key}=…")
    if kind in ("int", "logint") and not (all(isinstance(v, int) for v in (low, high)) and max(-low, high) <= _LARGEST):
        raise UsageError(f"{shown}; allowed: integers up to 2^53")
    if kind in ("log", "logint") and low <= 0:
        raise UsageError(f"{shown}; allowed: bounds above 0, which have a logarithm")
    if more and not (isinstance(more[0], int) and 2 <= more[0] <= _MOST_VALUES):
        raise UsageError(f"{shown}; allowed: 2 to {_MOST_VALUES} values")
    return low, high, more[0] if more else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _spread(own: Parameter, count: int) -> tuple[Any, ...]:
    """Evenly spread values of a range, with both ends."""
    ends = (math.log(own.low), math.log(own.high)) if own.is_log else (own.low, own.high)
    found: list[Any] = []
    for place in range(count):
        value = ends[0] + (ends[1] - ends[0]) * place / (count - 1)
        value = math.exp(value) if own.is_log else value
        # Rounding of the logarithm must not show: 1e-4, not 0.00010000000000000009.
        found.append(round(value) if own.is_integer else float(f"{value:.12g}"))
    found[0], found[-1] = own.low, own.high
    if len(set(found)) < count:
        raise UsageError(f"{own.key}={own.text} has fewer than {count} values; allowed: at most as many as integers")
    return tuple(found)
