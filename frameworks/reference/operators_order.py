"""Operators that compare elements along an axis, and cumulative sums and products."""

from __future__ import annotations

from functools import partial

import numpy as np

from deep5.frameworks.reference.kernels import order
from deep5.frameworks.reference.table import Call, Operator, Site, configured, first

__all__ = ["OPERATORS"]


def _extreme_index(site: Site, largest: bool) -> Call:
    function = partial(
        order.extreme_index,
        largest=largest,
        axis=site.attribute("axis", 0),
        keepdims=bool(site.attribute("keepdims", 1)),
        select_last_index=bool(site.attribute("select_last_index", 0)),
    )
    return Call(function, (0,))


def _cumulative(site: Site, ufunc: np.ufunc) -> Call:
    function = partial(
        order.cumulative,
        ufunc=ufunc,
        exclusive=bool(site.attribute("exclusive", 0)),
        reverse=bool(site.attribute("reverse", 0)),
    )
    return Call(function, (0, 1))


def _top_k(site: Site) -> Call:
    function = partial(order.top_k, axis=site.attribute("axis", -1), largest=bool(site.attribute("largest", 1)))
    return Call(first(function, site.outputs), (0, 1))


def _unique(site: Site) -> Call:
    function = partial(order.unique, axis=site.attribute("axis"), in_order=bool(site.attribute("sorted", 1)))
    return Call(first(function, site.outputs), (0,))


OPERATORS: dict[str, Operator] = {
    "ArgMax": Operator(partial(_extreme_index, largest=True)),
    "ArgMin": Operator(partial(_extreme_index, largest=False)),
    "CumProd": Operator(partial(_cumulative, ufunc=np.multiply)),
    "CumSum": Operator(partial(_cumulative, ufunc=np.add)),
    "Hardmax": configured(order.hardmax, axis=-1),
    "TopK": Operator(_top_k),
    "Unique": Operator(_unique),
}
