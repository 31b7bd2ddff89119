"""The table of composites, and each back-end's overrides: they compute the same function as their composites."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.networks.kernels.operators import COMPOSITES, LISTS, check_overrides
from operator_cases import cases, named, single

FRAMEWORKS = ("pytorch", "tensorflow", "jax")


def overridden() -> list[Any]:
    found = []
    for framework in FRAMEWORKS:
        import_module(f"deep5.frameworks.{framework}.operators")
        overrides = import_module(f"deep5.frameworks.{framework}.table").OVERRIDES
        # JAX runs the cases of PyTorch's and TensorFlow's tables.
        own = cases("tensorflow" if framework == "jax" else framework)
        found += [
            pytest.param(framework, *case, id=f"{framework}-{case[0]}-{index}")
            for index, case in enumerate(own)
            if case[0] in overrides
        ]
    return found


@pytest.mark.parametrize(("framework", "op", "values", "options"), overridden())
def test_an_override_computes_the_same_function(
    framework: str, op: str, values: tuple[np.ndarray, ...], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = named(values)
    network = single(op, feeds, **options)
    first = d5.framework(framework).executor(network).inference(feeds)
    written = import_module(f"deep5.frameworks.{framework}.composites").emit_of(COMPOSITES[op])
    monkeypatch.setitem(import_module(f"deep5.frameworks.{framework}.table").OPERATORS, op, written)
    second = d5.framework(framework).executor(network).inference(feeds)
    for name, want in first.items():
        # Some float32 operations in another order.
        np.testing.assert_allclose(d5.to_numpy(second[name]), d5.to_numpy(want), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_back_end_has_every_composite(framework: str) -> None:
    table = import_module(f"deep5.frameworks.{framework}.operators").OPERATORS
    assert set(COMPOSITES) | (set() if framework == "jax" else set(LISTS)) <= set(table)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_override_states_its_reason(framework: str) -> None:
    import_module(f"deep5.frameworks.{framework}.operators")
    overrides = import_module(f"deep5.frameworks.{framework}.table").OVERRIDES
    assert [op for op, why in overrides.items() if len(why.split()) < 4] == []


@pytest.mark.parametrize(
    ("operators", "overrides", "named"),
    [(["Resize"], {}, "Resize"), ([], {"Identity": "it is faster than what there is not"}, "Identity")],
)
def test_an_operator_that_is_written_twice_is_refused(
    operators: list[str], overrides: dict[str, str], named: str
) -> None:
    with pytest.raises(UsageError, match=f"the operators {named} are written twice, or override nothing; allowed: "):
        check_overrides(operators, overrides)
