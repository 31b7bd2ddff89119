"""Random numbers.

They are a function of the attribute `seed`, or of the node's name without it: every run draws the same numbers, and so
do nodes with the same seed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import onnx_ir as ir

from deep5.frameworks.reference.kernels import noise
from deep5.frameworks.reference.table import Call, Operator, Site

__all__ = ["OPERATORS"]


def _seed(site: Site) -> str:
    given = site.attribute("seed")
    return f"node {site.node.name}" if given is None else f"seed {float(given)!r}"


def _dtype(site: Site, default: ir.DataType | None) -> Any:
    kind = site.attribute("dtype", default)
    return None if kind is None else ir.DataType(kind).numpy()


def _uniform(site: Site) -> dict[str, Any]:
    return {"seed": _seed(site), "low": site.attribute("low", 0.0), "high": site.attribute("high", 1.0)}


def _normal(site: Site) -> dict[str, Any]:
    return {"seed": _seed(site), "mean": site.attribute("mean", 0.0), "scale": site.attribute("scale", 1.0)}


def _random_uniform(site: Site) -> Call:
    shape, dtype = tuple(site.attribute("shape")), _dtype(site, ir.DataType.FLOAT)
    return Call(partial(noise.uniform, shape=shape, dtype=dtype, **_uniform(site)), ())


def _random_normal(site: Site) -> Call:
    shape, dtype = tuple(site.attribute("shape")), _dtype(site, ir.DataType.FLOAT)
    return Call(partial(noise.normal, shape=shape, dtype=dtype, **_normal(site)), ())


def _multinomial(site: Site) -> Call:
    count, dtype = site.attribute("sample_size", 1), _dtype(site, ir.DataType.INT32)
    return Call(partial(noise.multinomial, seed=_seed(site), count=count, dtype=dtype), (0,))


OPERATORS: dict[str, Operator] = {
    "Bernoulli": Operator(
        lambda site: Call(partial(noise.bernoulli, seed=_seed(site), dtype=_dtype(site, None)), (0,))
    ),
    "Multinomial": Operator(_multinomial),
    "RandomNormal": Operator(_random_normal),
    "RandomNormalLike": Operator(
        lambda site: Call(partial(noise.normal_like, dtype=_dtype(site, None), **_normal(site)), (0,))
    ),
    "RandomUniform": Operator(_random_uniform),
    "RandomUniformLike": Operator(
        lambda site: Call(partial(noise.uniform_like, dtype=_dtype(site, None), **_uniform(site)), (0,))
    ),
}
