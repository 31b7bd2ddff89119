"""Emits a traced rule as C source: one function per phase, each a loop over chunks of all parameters."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deep5.training.expression import OPERATIONS, Expr, topological
from deep5.training.trace import TracedRule

__all__ = ["POINTERS", "TOTALS", "KernelArgs", "Phase", "emit_c", "phases"]

TOTALS = ("norm", "overflow")
"""Sums over the model for the gradient pipeline, one phase each: of squares, and of zeros if all is finite."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One pass over the parameters.

    Attributes:
        name: `"prepare"`, `"overflow"`, `"norm"`, `"sums"`, `"update"` or `"evaluate"`.
        elements: Per-element results: the destination (`"live"`, `"state:NAME"`, `"sum:NAME"`, `"total:NAME"`) and the
            value.
        scalars: Scalar nodes that the element expressions use, in the order of the kernel's scratch.
        new_scalars: New values of states of shape (), by name.
        nodes: All nodes of `elements`, operands first.
        scalar_nodes: All nodes of `scalars` and `new_scalars`, operands first.
    """

    name: str
    elements: dict[str, Expr]
    scalars: tuple[Expr, ...]
    new_scalars: dict[str, Expr]
    nodes: tuple[Expr, ...]
    scalar_nodes: tuple[Expr, ...]


def phases(traced: TracedRule) -> dict[str, Phase]:
    """The passes of a rule, by name."""
    found = {}
    if traced.prepare is not None:
        found["prepare"] = _phase("prepare", {"live": traced.prepare})
    if traced.overflow is not None:
        found["overflow"] = _phase("overflow", {"total:overflow": traced.overflow})
    if traced.norm is not None:
        found["norm"] = _phase("norm", {"total:norm": traced.norm})
    if traced.sums:
        found["sums"] = _phase("sums", {f"sum:{name}": value for name, value in traced.sums.items()})
    found["update"] = _phase(
        "update",
        {"live": traced.param, **{f"state:{name}": traced.new_states[name] for name in traced.arrays}},
        {name: traced.new_states[name] for name in traced.scalars},
    )
    if traced.evaluate is not None:
        found["evaluate"] = _phase("evaluate", {"live": traced.evaluate})
    return found


def _phase(name: str, elements: Mapping[str, Expr], new_scalars: Mapping[str, Expr] | None = None) -> Phase:
    used: dict[int, Expr] = {}
    nodes = topological(elements.values())
    for node in nodes:
        if node.element:
            used.update((arg.serial, arg) for arg in node.args if isinstance(arg, Expr) and not arg.element)
    # A state may be constant; then the root itself is the scalar that every element receives.
    used.update((root.serial, root) for root in elements.values() if not root.element)
    scalars, states = tuple(used.values()), dict(new_scalars or {})
    return Phase(
        name=name,
        elements=dict(elements),
        scalars=scalars,
        new_scalars=states,
        nodes=tuple(nodes),
        scalar_nodes=tuple(topological((*scalars, *states.values()))),
    )


_HEADER = """\
#include <math.h>
#include <stdint.h>

typedef {ctype} T;

typedef struct {{
    int64_t tensors, chunks, threads, sum_stride;
    const int64_t *chunk_tensor, *chunk_begin, *chunk_end;
    T *const *grad;
    T *const *param;
    T *const *live;
    T *const *state;
    double *scalar_state;
    const int64_t *group;
    const double *given;
    double *totals;
    double *sums;
    double *scratch;
    double *partial;
}} Args;
"""
_FIELDS = ("tensors", "chunks", "threads", "sum_stride")
POINTERS = (
    "chunk_tensor",
    "chunk_begin",
    "chunk_end",
    "grad",
    "param",
    "live",
    "state",
    "scalar_state",
    "group",
    "given",
    "totals",
    "sums",
    "scratch",
    "partial",
)
"""The arguments of a kernel, in the order of the C structure."""


class KernelArgs(ctypes.Structure):
    """The C structure above, field by field."""

    _fields_ = [*((name, ctypes.c_int64) for name in _FIELDS), *((name, ctypes.c_void_p) for name in POINTERS)]


def emit_c(traced: TracedRule, dtype: str) -> str:
    """The C source of a rule for one element type.

    Args:
        traced: The rule.
        dtype: `"float32"` or `"float64"`.
    """
    ctype = {"float32": "float", "float64": "double"}[dtype]
    parts = [_HEADER.format(ctype=ctype)]
    parts += [_emit_phase(phase, traced, "f" if ctype == "float" else "") for phase in phases(traced).values()]
    return "\n".join(parts)


def _emit_phase(phase: Phase, traced: TracedRule, suffix: str) -> str:
    arrays = traced.arrays
    lines = [f"void {phase.name}(const Args *a) {{"]
    lines += _emit_scalars(phase, traced)
    sums = list(phase.elements) if phase.name in ("sums", *TOTALS) else []
    lines += [
        "    #pragma omp parallel for schedule(static) num_threads(a->threads) if(a->threads > 1)",
        "    for (int64_t c = 0; c < a->chunks; ++c) {",
        "        const int64_t t = a->chunk_tensor[c], begin = a->chunk_begin[c], end = a->chunk_end[c];",
    ]
    leaves = {node.args[0] for node in phase.nodes if node.op == "load"}
    for name in ("grad", "param"):
        if name in leaves:
            lines.append(f"        const T *const {name} = a->{name}[t];")
    if "live" in phase.elements:
        lines.append("        T *const live = a->live[t];")
    for index, name in enumerate(arrays):
        if f"state:{name}" in leaves or f"state:{name}" in phase.elements:
            lines.append(f"        T *const state{index} = a->state[{index} * a->tensors + t];")
    names: dict[int, str] = {}
    for index, node in enumerate(phase.scalars):
        names[node.serial] = f"c{index}"
        lines.append(f"        const T c{index} = (T)a->scratch[t * {len(phase.scalars)} + {index}];")
    if sums:
        lines += [f"        double sum{index} = 0;" for index in range(len(sums))]
        clause = "".join(f" reduction(+:sum{index})" for index in range(len(sums)))
        lines.append(f"        #pragma omp simd{clause}")
    else:
        # Each iteration reads an element before writing it and touches no other: there are no dependences.
        lines.append("        #pragma GCC ivdep")
    lines.append("        for (int64_t i = begin; i < end; ++i) {")
    lines += _emit_elements(phase, names, arrays, suffix)
    for destination, root in phase.elements.items():
        value = names[root.serial]
        if destination == "total:norm":
            # Squared in double precision: the square of a float32 gradient may overflow float32.
            lines.append(f"            sum0 += (double){value} * (double){value};")
        elif destination in sums:
            lines.append(f"            sum{sums.index(destination)} += (double){value};")
        elif destination == "live":
            lines.append(f"            live[i] = {value};")
        else:
            lines.append(f"            state{arrays.index(destination[6:])}[i] = {value};")
    lines.append("        }")
    lines += [f"        a->partial[c * {len(sums)} + {index}] = sum{index};" for index in range(len(sums))]
    lines.append("    }")
    if sums:
        # In chunk order for any number of threads: the result is the same, bit for bit.
        width, model = len(sums), phase.name in TOTALS
        into = f"a->totals + {TOTALS.index(phase.name)}" if model else "a->sums"
        lines += [
            f"    double *const into = {into};",
            f"    const int64_t stride = {0 if model else 'a->sum_stride'};",
            f"    for (int64_t k = 0; k < (stride ? a->tensors : 1) * {width}; ++k) into[k] = 0;",
            "    for (int64_t c = 0; c < a->chunks; ++c)",
            f"        for (int64_t k = 0; k < {width}; ++k)",
            f"            into[a->chunk_tensor[c] * stride + k] += a->partial[c * {width} + k];",
        ]
    lines.append("}\n")
    return "\n".join(lines)


def _emit_scalars(phase: Phase, traced: TracedRule) -> list[str]:
    if not phase.scalar_nodes:
        return []
    given, states, sums = traced.given, traced.scalars, list(traced.sums)
    lines = ["    for (int64_t t = 0; t < a->tensors; ++t) {"]
    if given:
        lines.append(f"        const double *const given = a->given + a->group[t] * {len(given)};")
    names: dict[int, str] = {}
    for number, node in enumerate(phase.scalar_nodes):
        names[node.serial] = f"s{number}"
        if node.op == "const":
            value = _literal(node.args[0])
        elif node.op == "input" and node.args[0].startswith("state:"):
            value = f"a->scalar_state[t * {len(states)} + {states.index(node.args[0][6:])}]"
        elif node.op == "input" and node.args[0].startswith("sum:"):
            value = f"a->sums[t * a->sum_stride + {sums.index(node.args[0][4:])}]"
        elif node.op == "input" and node.args[0].startswith("total:"):
            value = f"a->totals[{TOTALS.index(node.args[0][6:])}]"
        elif node.op == "input":
            value = f"given[{given.index(node.args[0])}]"
        else:
            value = OPERATIONS[node.op][2].format(*(names[arg.serial] for arg in node.args), S="")
        lines.append(f"        const double s{number} = {value};")
    for index, node in enumerate(phase.scalars):
        lines.append(f"        a->scratch[t * {len(phase.scalars)} + {index}] = {names[node.serial]};")
    for name, node in phase.new_scalars.items():
        lines.append(f"        a->scalar_state[t * {len(states)} + {states.index(name)}] = {names[node.serial]};")
    lines.append("    }")
    return lines


def _emit_elements(phase: Phase, names: dict[int, str], arrays: Sequence[str], suffix: str) -> list[str]:
    lines = []
    for number, node in enumerate(node for node in phase.nodes if node.element):
        names[node.serial] = f"v{number}"
        if node.op == "load":
            leaf = node.args[0]
            # By number: a state's name may contain characters that C does not allow.
            value = f"{leaf if leaf in ('grad', 'param') else f'state{arrays.index(leaf[6:])}'}[i]"
        elif node.op == "broadcast":
            value = names[node.args[0].serial]
        else:
            value = OPERATIONS[node.op][2].format(*(names[arg.serial] for arg in node.args), S=suffix)
        lines.append(f"            const {'int' if node.boolean else 'T'} v{number} = {value};")
    return lines


def _literal(value: float) -> str:
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return float(value).hex()
