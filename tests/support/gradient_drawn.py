"""Nodes of every differentiable operator of ONNX, drawn from the operator's own schema.

The values of an attribute are listed once per operator; an attribute of the schema without such a list is an error, so
that forgotten attributes, and those of a newer version, are noticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st

__all__ = ["CASES", "NEWEST", "OPSETS", "Case", "Drawn", "drawn_case", "newest_schema"]

NEWEST = onnx.defs.onnx_opset_version()
OPSETS = (20, NEWEST)
LEFT_OUT = object()
END = np.iinfo(np.int64).max


def newest_schema(op: str, opset: int = NEWEST) -> onnx.defs.OpSchema:
    return onnx.defs.get_schema(op, opset, "")


def has(op: str, opset: int) -> bool:
    return onnx.defs.has(op, opset, "") and not newest_schema(op, opset).deprecated


def takes_double(op: str, opset: int) -> bool:
    return any("tensor(double)" in each.types for each in newest_schema(op, opset).inputs)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One node and its inputs.

    Attributes:
        op: The operator.
        inputs: Arrays; None for those left out.
        by: Positions of the inputs to differentiate by.
        attributes: As `onnx.helper.make_node` takes them.
        outputs: Its number of outputs.
        opset: The version of its opset.
        shape: Shape of the first output, where ONNX's inference does not find it.
    """

    op: str
    inputs: Sequence[np.ndarray | None]
    by: Sequence[int] = (0,)
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = NEWEST
    shape: tuple[int, ...] | None = None


class Drawn:
    """The source of a case's random choices."""

    def __init__(self, draw: Callable[..., Any], op: str) -> None:
        self.draw, self.op = draw, op
        known = [opset for opset in OPSETS if has(op, opset)]
        double = [opset for opset in known if takes_double(op, opset)]
        self.opset = draw(st.sampled_from(double or known))
        self.single = not double
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def one_of(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def whole(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def shape(self, low: int = 0, high: int = 3, *, smallest: int = 1, largest: int = 4) -> tuple[int, ...]:
        return tuple(self.draw(st.lists(st.integers(smallest, largest), min_size=low, max_size=high)))

    def values(self, shape: Sequence[int], low: float = -2.0, high: float = 2.0) -> np.ndarray:
        return np.asarray(self.rng.uniform(low, high, tuple(shape)))

    def with_zeros(self, shape: Sequence[int]) -> np.ndarray:
        """Away from zero, with some exact zeros: where an operator multiplies, each is a separate case."""
        values = self.values(shape, 0.5, 2.0) * self.rng.choice([-1.0, 1.0], tuple(shape))
        return np.where(self.rng.random(tuple(shape)) < self.one_of(0.0, 0.2, 0.6), 0.0, values)

    def least(self) -> int:
        """The smallest dimension: sometimes zero."""
        return self.one_of(1, 1, 1, 0)

    def broadcast(self, count: int) -> list[tuple[int, ...]]:
        """Shapes that broadcast against each other."""
        whole = self.shape(0, 3, smallest=self.least())
        found = []
        for _ in range(count):
            kept = whole[self.whole(0, len(whole)) :]
            found.append(tuple(1 if self.whole(0, 3) == 0 else extent for extent in kept))
        return found

    def axis(self, rank: int) -> int:
        return self.whole(-rank, rank - 1)

    def attributes(self, **allowed: Any) -> dict[str, Any]:
        """Values of all attributes of the schema; an optional one may be left out.

        Args:
            allowed: By name, a strategy, a value, or a list of values; None: it is not drawn, for the reason in the
                comment next to it.
        """
        schema, found = newest_schema(self.op, self.opset), {}
        unknown = schema.attributes.keys() - allowed.keys()
        assert not unknown, f"{self.op}-{schema.since_version}: nothing is said about {sorted(unknown)}"
        for name, what in allowed.items():
            if name not in schema.attributes or what is None:
                continue
            strategy = what if isinstance(what, st.SearchStrategy) else st.sampled_from(what)
            if schema.attributes[name].required or self.flag():
                value = self.draw(strategy)
                if value is not LEFT_OUT:
                    found[name] = value
        return found

    def case(self, inputs: Sequence[np.ndarray | None], attributes: dict[str, Any] | None = None, **more: Any) -> Case:
        if self.single:
            inputs = [v.astype(np.float32) if v is not None and v.dtype == np.float64 else v for v in inputs]
        return Case(op=self.op, inputs=inputs, attributes=attributes or {}, opset=self.opset, **more)


CASES: dict[str, Callable[[Drawn], Case]] = {}


def case(*ops: str) -> Callable[[Callable[[Drawn], Case]], Callable[[Drawn], Case]]:
    def note(function: Callable[[Drawn], Case]) -> Callable[[Drawn], Case]:
        CASES.update(dict.fromkeys(ops, function))
        return function

    return note


def drawn_case(op: str) -> st.SearchStrategy[Case]:
    @st.composite
    def strategy(draw: Callable[..., Any]) -> Case:
        return CASES[op](Drawn(draw, op))

    return strategy()


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers that float32, in which ONNX stores attributes, represents exactly."""
    return st.integers(0, 16).map(lambda step: low + (high - low) * step / 16)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


FLAG = (0, 1)

DOMAINS = {
    "Acos": (-0.9, 0.9),
    "Acosh": (1.1, 3.0),
    "Asin": (-0.9, 0.9),
    "Atanh": (-0.9, 0.9),
    "Log": (0.2, 3.0),
    "Reciprocal": (0.3, 2.0),
    "Sqrt": (0.2, 3.0),
    "Tan": (-1.2, 1.2),
}


@case(
    *DOMAINS, "Abs", "Asinh", "Atan", "Cos", "Cosh", "Erf", "Exp", "HardSwish", "Identity", "Mish", "Neg", "Relu",
    "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Tanh",
)  # fmt: skip
def function(d: Drawn) -> Case:
    return d.case([d.values(d.shape(smallest=0), *DOMAINS.get(d.op, (-3.5, 3.5)))], d.attributes())


@case("Celu", "Elu", "Gelu", "HardSigmoid", "LeakyRelu", "Selu", "Shrink", "Swish", "ThresholdedRelu")
def activation(d: Drawn) -> Case:
    settings = d.attributes(
        **{
            name: value
            for name, value in {
                "alpha": numbers(0.25, 2.0),
                "gamma": numbers(0.25, 2.0),
                "beta": numbers(-0.5, 1.0),
                "bias": numbers(-0.5, 1.0),
                "lambd": numbers(0.0, 1.0),
                "approximate": ["none", "tanh"],
            }.items()
            if name in newest_schema(d.op, d.opset).attributes
        }
    )
    return d.case([d.values(d.shape(smallest=0), -3.5, 3.5)], settings)


@case("Softmax", "LogSoftmax")
def softmax(d: Drawn) -> Case:
    shape = d.shape(1, 3, smallest=d.least())
    return d.case([d.values(shape, -4.0, 4.0)], d.attributes(axis=st.integers(-len(shape), len(shape) - 1)))


@case("Add", "Sub", "Mul", "PRelu")
def binary(d: Drawn) -> Case:
    a, c = d.broadcast(2)
    if d.op == "PRelu":  # the slope broadcasts to x, not x to it
        a = np.broadcast_shapes(a, c)
    return d.case([d.values(a), d.values(c)], d.attributes(), by=(0, 1))


@case("Div", "Mod", "Pow")
def divided(d: Drawn) -> Case:
    a, c = d.broadcast(2)
    if d.op == "Mod":
        settings = d.attributes(fmod=[1] if d.opset < NEWEST else FLAG)
        if d.opset < NEWEST:
            settings["fmod"] = 1  # floating-point numbers allow no other
        return d.case([d.values(a, -4.0, 4.0), d.values(c, 0.7, 1.5)], settings, by=(0, 1))
    settings = d.attributes()
    if d.op == "Pow" and d.flag():
        exponent = d.one_of(np.array(0.0), np.array(1.0), np.array(2.0), np.array(3, np.int64), np.array(-1.0))
        return d.case([d.values(a, 0.5, 2.0) * d.one_of(1.0, -1.0), exponent])
    return d.case([d.values(a, 0.4, 2.0), d.values(c, 0.4, 2.0)], settings, by=(0, 1))


@case("Sum", "Mean", "Max", "Min")
def variadic(d: Drawn) -> Case:
    shapes = d.broadcast(d.whole(1, 3))
    return d.case([d.values(shape) for shape in shapes], d.attributes(), by=range(len(shapes)))


@case("Where")
def where(d: Drawn) -> Case:
    condition, a, c = d.broadcast(3)
    return d.case([d.rng.random(condition) < 0.5, d.values(a), d.values(c)], d.attributes(), by=(1, 2))


@case("Clip")
def clip(d: Drawn) -> Case:
    bounds = [d.values(()) if d.flag() else None for _ in range(2)]
    present = [at + 1 for at, bound in enumerate(bounds) if bound is not None]
    return d.case([d.values(d.shape(smallest=0)), *bounds], d.attributes(), by=(0, *present))


@case("Cast", "CastLike")
def cast(d: Drawn) -> Case:
    settings = d.attributes(
        to=[onnx.TensorProto.DOUBLE],  # another precision would hide the difference: gradient_table.py covers float32
        saturate=FLAG,
        round_mode=["up", "down", "nearest"],
    )
    like = [] if d.op == "Cast" else [np.zeros(1)]
    return d.case([d.values(d.shape()), *like], {k: v for k, v in settings.items() if k in ("to",)})


@case("Gemm")
def gemm(d: Drawn) -> Case:
    settings = d.attributes(alpha=numbers(-1.0, 2.0), beta=numbers(-1.0, 2.0), transA=FLAG, transB=FLAG)
    m, k, n = d.shape(3, 3, smallest=d.least())
    a, b = ((k, m) if settings.get("transA") else (m, k)), ((n, k) if settings.get("transB") else (k, n))
    inputs = [d.values(a), d.values(b)]
    if d.flag():
        inputs.append(d.values(d.one_of((), (1,), (n,), (m, 1), (1, n), (m, n))))
    return d.case(inputs, settings, by=range(len(inputs)))


@case("MatMul")
def matmul(d: Drawn) -> Case:
    m, k, n = d.shape(3, 3, smallest=d.least(), largest=3)
    lead = d.broadcast(2)
    a = d.one_of((k,), (*lead[0], m, k))
    b = d.one_of((k,), (*lead[1], k, n))
    return d.case([d.values(a), d.values(b)], d.attributes(), by=(0, 1))


EQUATIONS = [
    "ij,jk->ik", "ij->ji", "ij->", "ii->i", "ii->", "iij->ji", "ij,ij->i", "i,j->ij", "bij,bjk->bik", "ij,jk,kl->il",
    "ij,jk", "ba", "i,i", "...ij,...jk->...ik", "...i,i->...", "ij...,jk->k...i", "...,...->...", "i...->...",
    "ij,kj,k->i", "iij,jk->k", "ij,kl->", "bhid,bhjd->bhij", "i->i", "...i->i...",
]  # fmt: skip


@case("Einsum")
def einsum(d: Drawn) -> Case:
    equation = d.attributes(equation=EQUATIONS)["equation"]
    sizes: dict[str, int] = {}
    shapes, lead = [], d.shape(0, 2)
    for term in equation.partition("->")[0].split(","):
        before, dots, behind = term.partition("...")
        # Dots cover the same number of axes in every term: ONNX's inference accepts nothing else.
        own = [1 if d.whole(0, 3) == 0 else extent for extent in lead] if dots else []
        named = [[sizes.setdefault(letter, d.whole(1, 3)) for letter in part] for part in (before, behind)]
        shapes.append((*named[0], *own, *named[1]))
    return d.case([d.values(shape) for shape in shapes], {"equation": equation}, by=range(len(shapes)))


def reduced_axes(d: Drawn, rank: int) -> np.ndarray | None:
    if rank == 0 or d.flag():
        return None
    chosen = d.draw(st.sets(st.integers(0, rank - 1), max_size=rank))
    return integers(*(axis - rank if d.flag() else axis for axis in chosen))


@case(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def reduction(d: Drawn) -> Case:
    whole = d.op not in ("ReduceL1", "ReduceProd", "ReduceSum", "ReduceSumSquare")  # an empty set has no mean
    shape = d.shape(0, 3, smallest=1 if whole else d.least())
    settings = d.attributes(keepdims=FLAG, noop_with_empty_axes=FLAG)
    axes = reduced_axes(d, len(shape))
    if d.op == "ReduceProd":
        x = d.with_zeros(shape)
    else:
        x = d.values(shape, *((0.2, 2.0) if d.op in ("ReduceLogSum", "ReduceL2") else (-2.0, 2.0)))
    return d.case([x] if axes is None else [x, axes], settings)


@case("CumSum", "CumProd")
def cumulated(d: Drawn) -> Case:
    shape = d.shape(1, 3, smallest=d.least())
    axis = np.array(d.axis(len(shape)), d.one_of(np.int64, np.int32))
    settings = d.attributes(exclusive=FLAG, reverse=FLAG)
    return d.case([d.with_zeros(shape) if d.op == "CumProd" else d.values(shape), axis], settings)


@case("TopK")
def top_k(d: Drawn) -> Case:
    shape = d.shape(1, 3)
    settings = d.attributes(axis=st.integers(-len(shape), len(shape) - 1), largest=FLAG, sorted=[1])  # else unordered
    k = d.whole(0, shape[settings.get("axis", -1)])
    return d.case([d.values(shape), integers(k)], settings, outputs=2)


@case("Reshape")
def reshape(d: Drawn) -> Case:
    shape = d.shape(0, 3)
    settings = d.attributes(allowzero=FLAG)
    goal = d.one_of([-1], [*shape], [1, *shape], [math.prod(shape), 1])
    if shape and not settings.get("allowzero"):
        goal = d.one_of(goal, [0, -1])
    return d.case([d.values(shape), integers(*goal)], settings)


@case("Flatten")
def flatten(d: Drawn) -> Case:
    shape = d.shape(1, 3, smallest=d.least())
    return d.case([d.values(shape)], d.attributes(axis=st.integers(-len(shape), len(shape))))


@case("Squeeze", "Unsqueeze")
def squeeze(d: Drawn) -> Case:
    shape = d.shape(1, 3)
    place = d.axis(len(shape) + 1)
    if d.op == "Unsqueeze":
        return d.case([d.values(shape), integers(place)], d.attributes())
    whole = list(shape)
    whole.insert(place % (len(shape) + 1), 1)
    axes = d.one_of(None, integers(place))
    return d.case([d.values(whole)] if axes is None else [d.values(whole), axes], d.attributes())


@case("Transpose")
def transpose(d: Drawn) -> Case:
    shape = d.shape(1, 4, smallest=d.least(), largest=3)
    return d.case([d.values(shape)], d.attributes(perm=st.permutations(range(len(shape)))))


@case("Concat")
def concat(d: Drawn) -> Case:
    shape = d.shape(1, 3)
    axis = d.attributes(axis=st.integers(-len(shape), len(shape) - 1))["axis"]
    shapes = []
    for _ in range(d.whole(1, 3)):
        own = list(shape)
        own[axis] = d.whole(0, 3)
        shapes.append(own)
    return d.case([d.values(own) for own in shapes], {"axis": axis}, by=range(len(shapes)))


@case("Split")
def split(d: Drawn) -> Case:
    shape = list(d.shape(1, 3))
    settings = d.attributes(axis=st.integers(-len(shape), len(shape) - 1), num_outputs=st.integers(1, 3))
    axis, parts = settings.get("axis", 0), settings.get("num_outputs")
    if parts is not None:
        shape[axis] = max(shape[axis], parts)
        shape[axis] = shape[axis] if -(-shape[axis] // parts) * (parts - 1) < shape[axis] else parts
        return d.case([d.values(shape)], settings, outputs=parts)
    sizes = d.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    shape[axis] = sum(sizes)
    return d.case([d.values(shape), integers(*sizes)], settings, outputs=len(sizes))


@case("Slice")
def slice_(d: Drawn) -> Case:
    shape = d.shape(1, 3, smallest=d.least(), largest=5)
    chosen = list(d.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    near, far = st.integers(-6, 6), st.sampled_from([-END, END])
    bounds = [[d.draw(kind) for _ in chosen] for kind in (near, near | far)]
    inputs = [d.values(shape), *(integers(*part) for part in bounds)]
    axes = [axis - len(shape) if d.flag() else axis for axis in chosen]
    if d.flag():
        inputs += [integers(*axes), integers(*(d.one_of(1, 2, 3, -1, -2) for _ in chosen))]
    elif d.flag() or sorted(chosen) != list(range(len(chosen))):
        inputs.append(integers(*axes))
    return d.case(inputs, d.attributes())


@case("Expand", "Tile")
def repeated(d: Drawn) -> Case:
    if d.op == "Tile":
        shape = d.shape(1, 3, smallest=d.least())
        return d.case([d.values(shape), integers(*(d.whole(d.least(), 3) for _ in shape))], d.attributes())
    a, goal = d.broadcast(2)
    return d.case([d.values(a), integers(*goal)], d.attributes())


@case("SpaceToDepth", "DepthToSpace")
def blocks(d: Drawn) -> Case:
    settings = d.attributes(blocksize=[1, 2, 3], mode=["DCR", "CRD"])
    size, (n, c, h, w) = settings["blocksize"], d.shape(4, 4, largest=2)
    shape = (n, c * size * size, h, w) if d.op == "DepthToSpace" else (n, c, h * size, w * size)
    return d.case([d.values(shape)], settings)


@case("CenterCropPad")
def center(d: Drawn) -> Case:
    shape = d.shape(1, 3, largest=5)
    chosen = list(d.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    settings = d.attributes(axes=st.just([axis - len(shape) if d.flag() else axis for axis in chosen]))
    goal = [d.whole(1, 6) for _ in (chosen if "axes" in settings else shape)]
    return d.case([d.values(shape), integers(*goal)], settings)


@case("ReverseSequence")
def reverse(d: Drawn) -> Case:
    shape = d.shape(2, 3)
    time = d.whole(0, 1)
    settings = d.attributes(time_axis=[time], batch_axis=[1 - time])
    if len(settings) < 2:
        settings, time = {}, 0
    lengths = [d.whole(1, shape[time]) for _ in range(shape[1 - time])]
    return d.case([d.values(shape), integers(*lengths)], settings)


@case("Compress")
def compress(d: Drawn) -> Case:
    shape = d.shape(1, 3)
    settings = d.attributes(axis=st.integers(-len(shape), len(shape) - 1))
    size = shape[settings["axis"]] if "axis" in settings else math.prod(shape)
    return d.case([d.values(shape), d.rng.random(d.whole(1, size)) < 0.6], settings)


@case("Trilu")
def trilu(d: Drawn) -> Case:
    inputs = [d.values(d.shape(2, 3))]
    if d.flag():
        inputs.append(np.array(d.whole(-3, 3)))
    return d.case(inputs, d.attributes(upper=FLAG))


@case("Unique")
def unique(d: Drawn) -> Case:
    shape = d.shape(1, 2)
    settings = d.attributes(axis=st.integers(-len(shape), len(shape) - 1), sorted=[1])  # else no order is defined
    return d.case([d.values(shape)], settings)


@case("Pad")
def pad(d: Drawn) -> Case:
    shape = d.shape(1, 3, smallest=2)
    settings = d.attributes(mode=["constant", "reflect", "edge", "wrap"])
    mode = settings.get("mode", "constant")
    low, high = (-1, 3) if mode == "constant" else (0, 1)
    chosen = list(d.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))) if d.flag() else None
    count = len(shape) if chosen is None else len(chosen)
    widths = [d.whole(low, high) for _ in range(2 * count)]
    value = d.values(()) if mode == "constant" and d.flag() else None
    inputs = [d.values(shape), integers(*widths), value]
    if chosen is not None:
        inputs.append(integers(*(axis - len(shape) if d.flag() else axis for axis in chosen)))
    return d.case(inputs, settings, by=(0,) if value is None else (0, 2))


@case("Gather")
def gather(d: Drawn) -> Case:
    shape = d.shape(1, 3)
    settings = d.attributes(axis=st.integers(-len(shape), len(shape) - 1))
    size = shape[settings.get("axis", 0)]
    indices = d.rng.integers(-size, size, d.shape(0, 2))
    return d.case([d.values(shape), np.asarray(indices, d.one_of(np.int64, np.int32))], settings)


@case("GatherElements", "ScatterElements")
def elements(d: Drawn) -> Case:
    shape = d.shape(1, 3)
    axis = d.axis(len(shape))
    settings = {"axis": st.just(axis), **({"reduction": REDUCTIONS} if d.op == "ScatterElements" else {})}
    settings = d.attributes(**settings)
    axis = settings.get("axis", 0)
    size, own = shape[axis], [d.whole(1, extent) for extent in shape]
    if settings.get("reduction", "none") == "none" and d.op == "ScatterElements":
        indices = np.argsort(d.rng.random([*own[: axis % len(own)], size, *own[axis % len(own) + 1 :]]), axis=axis)
        indices = np.take(indices, range(own[axis]), axis)
    else:
        indices = d.rng.integers(-size, size, own)
    if d.op == "GatherElements":
        return d.case([d.values(shape), indices], settings)
    draw = d.with_zeros if settings.get("reduction") == "mul" else d.values
    return d.case([draw(shape), indices, draw(own)], settings, by=(0, 2))


REDUCTIONS = ["none", "add", "mul", "max", "min"]


@case("GatherND")
def gather_nd(d: Drawn) -> Case:
    shape = d.shape(1, 4, largest=3)
    batch = d.attributes(batch_dims=st.integers(0, len(shape) - 1)).get("batch_dims", 0)
    depth = d.whole(1, len(shape) - batch)
    sizes = np.array(shape[batch : batch + depth])
    indices = d.rng.integers(-sizes, sizes, (*shape[:batch], *d.shape(0, 2, largest=3), depth))
    result = (*indices.shape[:-1], *shape[batch + depth :])
    return d.case([d.values(shape), indices], {"batch_dims": batch}, shape=result)


@case("ScatterND")
def scatter_nd(d: Drawn) -> Case:
    shape = d.shape(1, 3, largest=3)
    settings = d.attributes(reduction=REDUCTIONS)
    depth = d.whole(1, len(shape))
    sizes = np.array(shape[:depth])
    if settings.get("reduction", "none") == "none":
        every = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), -1).reshape(-1, depth)
        indices = d.rng.permutation(every)[: d.whole(1, len(every))]
    else:
        indices = d.rng.integers(-sizes, sizes, (*d.shape(1, 2, largest=3), depth))
    draw = d.with_zeros if settings.get("reduction") == "mul" else d.values
    return d.case([draw(shape), indices, draw((*indices.shape[:-1], *shape[depth:]))], settings, by=(0, 2))


@case("TensorScatter")
def tensor_scatter(d: Drawn) -> Case:
    shape = list(d.shape(2, 4, largest=3))
    settings = d.attributes(axis=st.integers(1, len(shape) - 1), mode=["linear", "circular"])
    axis = settings.get("axis", -2) % len(shape)
    if axis == 0:
        settings["axis"] = axis = 1
    shape[axis] = d.whole(2, 4)
    own = list(shape)
    own[axis] = d.whole(1, shape[axis])
    inputs = [d.values(shape), d.values(own)]
    if d.flag():
        last = shape[axis] - (own[axis] if settings.get("mode") != "circular" else 1)
        inputs.append(np.asarray(d.rng.integers(0, last + 1, shape[0]), np.int64))
    return d.case(inputs, settings, by=(0, 1))


@case("OneHot")
def one_hot(d: Drawn) -> Case:
    shape = d.shape(1, 2)
    settings = d.attributes(axis=st.integers(-len(shape) - 1, len(shape)))
    result = list(shape)
    result.insert(settings.get("axis", -1) % (len(shape) + 1), 3)
    labels = np.asarray(d.rng.integers(-3, 3, shape))
    return d.case([labels, np.array(3), d.values((2,))], settings, by=(2,), shape=tuple(result))


@case("Range")
def range_(d: Drawn) -> Case:
    delta = d.one_of(0.75, -0.5)
    start = float(d.values(()))
    limit = start + delta * (d.whole(0, 4) + 0.5)
    settings = d.attributes(stash_type=[onnx.TensorProto.FLOAT])
    return d.case([np.array(start), np.array(limit), np.array(delta)], settings, by=(0, 2))


@case("Det")
def det(d: Drawn) -> Case:
    size = d.whole(1, 4)
    x = d.values((*d.shape(0, 2, largest=2), size, size))
    if d.flag() and size > 1:
        x[..., 1, :] = x[..., 0, :]  # singular
    return d.case([x], d.attributes())


@case("AffineGrid")
def affine_grid(d: Drawn) -> Case:
    axes, n = d.one_of(2, 3), d.whole(1, 2)
    size = integers(n, 1, *(d.whole(1, 3) for _ in range(axes)))
    return d.case([d.values((n, axes, axes + 1)), size], d.attributes(align_corners=FLAG))


@case("Dropout")
def dropout(d: Drawn) -> Case:
    inputs: list[np.ndarray | None] = [d.values(d.shape())]
    if d.flag():
        inputs.append(np.array(0.5))
    return d.case(inputs, d.attributes(seed=st.integers(0, 9)))


@case("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(d: Drawn) -> Case:
    n, c, *space = d.shape(2, 4)
    settings = d.attributes(reduction=["none", "mean", "sum"], ignore_index=st.integers(-1, 3))
    label = np.asarray(d.rng.integers(0, c, (n, *space)), d.one_of(np.int64, np.int32))
    if "ignore_index" in settings:
        label[d.rng.random(label.shape) < 0.3] = settings["ignore_index"]
        label[(label >= c) & (label != settings["ignore_index"])] = 0
        label.flat[0] = 0 if settings["ignore_index"] else min(1, c - 1)  # a mean over nothing is NaN
        if label.flat[0] == settings["ignore_index"]:
            settings.pop("ignore_index")
    inputs = [d.values((n, c, *space)), label]
    if d.flag():
        inputs.append(d.values((c,), 0.5, 2.0))
    return d.case(inputs, settings, outputs=1 if d.op.startswith("N") else d.one_of(1, 2))
