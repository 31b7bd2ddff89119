"""A class that lacks a part of its interface is refused when an object of it is made; all that it lacks is named."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.communicator import Request
from deep5.core.complete import PartialClassError
from deep5.core.errors import RuleError
from deep5.core.layer_clock import LayerClock
from deep5.core.network_spec import NetworkSpec
from deep5.training.batch_source import BatchSource
from deep5.training.loaders import LoaderSource
from deep5.training.native_optimizer import NativeOptimizer

ATTRIBUTES = {d5.Metric: ("name", "unit", "direction"), d5.Framework: ("name",)}
INTERFACES = [
    d5.Communicator,
    d5.Compression,
    d5.Dataset,
    d5.DistributedOptimizer,
    d5.Framework,
    d5.GraphExecutor,
    d5.Metric,
    d5.Observer,
    d5.Operator,
    d5.OperatorExecutor,
    d5.Sampler,
    d5.Schedule,
    d5.StepOptimizer,
    d5.StreamDataset,
    d5.TrainStep,
    d5.Transform,
    BatchSource,
    LayerClock,
    LoaderSource,
    NativeOptimizer,
    NetworkSpec,
    Request,
]


def required(interface: Any) -> list[str]:
    return [*ATTRIBUTES.get(interface, ()), *sorted(interface.__abstractmethods__)]


def made(interface: Any, without: Any) -> Any:
    """An object of a subclass that defines all but some names; nothing else of it is looked at."""
    own = {name: (lambda self, *given, **named: None) for name in required(interface) if name not in without}
    return type("Partial", (interface,), {**own, "__init__": lambda self: None})()


@pytest.mark.parametrize("interface", INTERFACES, ids=lambda interface: interface.__name__)
def test_a_partial_subclass_is_refused_and_all_that_it_lacks_is_named(interface: Any) -> None:
    names = required(interface)
    made(interface, ())
    draw = np.random.default_rng(len(names))
    drawn = [list(draw.choice(names, draw.integers(1, len(names) + 1), replace=False)) for _ in range(4)]
    for missing in ([names[0]], [names[-1]], names, *drawn):
        with pytest.raises(TypeError) as raised:
            made(interface, missing)
        said = set(re.findall(r"\w+", str(raised.value)))
        assert set(missing) <= said, missing
        assert not (set(names) - set(missing)) & said, missing


def test_what_is_missing_of_a_metric_has_a_remedy() -> None:
    class Slow(d5.Metric):
        name, unit = "slow", "s"

    told = r"Slow does not define direction, observer; allowed: .* Metric requires; remedy: define them in .*Slow"
    with pytest.raises(PartialClassError, match=told) as raised:
        Slow()  # type: ignore[abstract]
    assert isinstance(raised.value, d5.UsageError)


def test_a_rule_without_update_rule_is_refused_when_it_is_made() -> None:
    class Nothing(d5.UpdateRule):
        pass

    with pytest.raises(RuleError, match="Nothing has no update_rule; remedy: define update_rule"):
        Nothing()


def stubs(kind: Any) -> list[str]:
    """Methods with an empty body that would return None where their annotation says something else."""
    found = []
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    for method in body.body:
        if not isinstance(method, ast.FunctionDef) or method.name in kind.__abstractmethods__:
            continue
        rest = [
            line for line in method.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        ]
        if not rest and method.returns is not None and ast.unparse(method.returns) != "None":
            found.append(method.name)
    return found


@pytest.mark.parametrize("interface", INTERFACES, ids=lambda interface: interface.__name__)
def test_no_parent_returns_none_where_it_promises_something(interface: Any) -> None:
    assert not stubs(interface)
    protocol = getattr(interface, "_is_protocol", False)
    methods = {
        name for name, value in vars(interface).items() if inspect.isfunction(value) or isinstance(value, property)
    }
    own = {name for name in methods if not name.startswith("_") or name == "__call__"}
    # Of a protocol nothing is inherited: each of its methods is a promise of the subclass.
    assert not protocol or own <= interface.__abstractmethods__


def test_an_executor_of_one_of_the_two_methods_is_refused() -> None:
    """The rest can be derived from both (`tests/training/test_derived_executor.py`)."""

    class Mine(d5.GraphExecutor):
        capabilities = frozenset({"float64"})

        def inference(self, inputs: Any, *, training: bool = False, info: Any = None) -> Any:
            return inputs

    told = (
        r"buffers.*export.*gradients.*parameters.*settings.*train_step.*write.*, or only inference_and_backprop: deep5"
    )
    with pytest.raises(TypeError, match=told):
        Mine()  # type: ignore[abstract]
