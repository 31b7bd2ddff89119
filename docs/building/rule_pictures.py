"""Shows what deep5 makes of an update rule: its trace as a graph, and the C that is compiled."""

from __future__ import annotations

from collections.abc import Callable

from mkdocs.exceptions import PluginError
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CLexer

import deep5 as d5
from deep5.training.emit_c import emit_c
from deep5.training.expression import Expr, topological
from deep5.training.trace import TracedRule, trace_rule
from graph_drawing import Box, svg

__all__ = ["SignMomentum", "draw"]


class SignMomentum(d5.UpdateRule):
    """The rule of README: m ← β m + (1 − β) g;  w ← w − lr · sign(m)."""

    hyper = ("lr", "beta")

    def __init__(self, lr: float = 0.001, beta: float = 0.9) -> None:
        self.lr, self.beta = lr, beta

    def init_state(self, param: d5.Array) -> dict[str, d5.Array]:
        """The momentum, zero."""
        return {"m": d5.array_namespace(param).zeros_like(param)}

    def update_rule(
        self, grad: d5.Array, param: d5.Array, state: dict[str, d5.Array]
    ) -> tuple[d5.Array, dict[str, d5.Array]]:
        """One step; see the class."""
        m = self.beta * state["m"] + (1 - self.beta) * grad
        return param - self.lr * d5.array_namespace(param).sign(m), {"m": m}


def draw(subject: str) -> str:
    """The trace of `SignMomentum` as SVG (`trace`), or the source of its kernel in float32 as HTML (`c`).

    Raises:
        PluginError: The subject is neither.
    """
    if subject not in _SUBJECTS:
        raise PluginError(f"no picture of a rule {subject!r}; allowed: {', '.join(_SUBJECTS)}; remedy: one of these")
    return _SUBJECTS[subject](trace_rule(SignMomentum()))


def _trace(traced: TracedRule) -> str:
    results = {"new param": traced.param, "new m": traced.new_states["m"]}
    boxes: list[Box] = []
    edges: list[tuple[int, int]] = []
    places: dict[int, int] = {}
    for node in topological(results.values()):
        if node.op == "broadcast":
            places[node.serial] = places[node.args[0].serial]
            continue
        edges += [(places[arg.serial], len(boxes)) for arg in node.args if isinstance(arg, Expr)]
        places[node.serial] = len(boxes)
        boxes.append(_box(node))
    for name, root in results.items():
        edges.append((places[root.serial], len(boxes)))
        boxes.append(Box(kind="end", lines=(name,)))
    elements = sum(box.kind == "plain" for box in boxes)
    scalars = sum(box.kind == "accent" for box in boxes)
    return svg(boxes, edges, f"Trace of SignMomentum: {elements} nodes per element, {scalars} scalars", least_px=420)


def _box(node: Expr) -> Box:
    """An array that is loaded, or an operation; numbers that all elements share have an accent."""
    if node.op == "load":
        return Box(kind="end", lines=(node.args[0].removeprefix("state:"),))
    name = {"input": lambda: node.args[0], "const": lambda: f"{node.args[0]:g}"}.get(node.op, lambda: node.op)()
    return Box(kind="plain" if node.element else "accent", lines=(str(name),))


def _source(traced: TracedRule) -> str:
    source = emit_c(traced, "float32")
    kernel = source[source.index("void update") :]
    return str(highlight(kernel, CLexer(), HtmlFormatter(cssclass="highlight", wrapcode=True)))


_SUBJECTS: dict[str, Callable[[TracedRule], str]] = {"trace": _trace, "c": _source}
