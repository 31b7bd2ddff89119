"""The plan of an operator benchmark, in JSON types: the same in this process and in fresh ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.core import quantities
from deep5.core.errors import Deep5Error, ShapeError, UsageError, suggestion
from deep5.core.operator import Operator
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.operators.contract import is_floating
from deep5.operators.drawn import check_bounds, check_held, each_input
from deep5.operators.problem import FORWARD, Direction, Problem
from deep5.operators.problems import problem_set
from deep5.operators.work import RECURRENT, backward_bytes, backward_flops, flops, misfit, moved_bytes

if TYPE_CHECKING:
    from deep5.core.framework import Framework

__all__ = ["Plan", "Workload", "framework_of", "make_operator_of", "remarks", "workload_of", "workloads"]

# Element types to suggest.
_TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8", "bool")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An operator benchmark as declared.

    Attributes:
        operator: Name of an ONNX operator, `DOMAIN.NAME` of a registered operator, or `FILE.py:NAME`; None: that of the
            problems.
        problems: Name of a problem set, or None.
        uses: Uses of the problems; all if empty.
        shapes: Shapes of the inputs, without a problem set.
        attributes: Attributes of the operator, in addition to those of a problem.
        dtype: Of every tensor, or one per input.
        bounds: Inputs are uniform between these; None: within [-scale, scale], integers below every dimension.
        frameworks: Names, modes included.
        bare: `FILE.py:NAME` or `MODULE:NAME` of the function with the hand-written operator, or None.
        backward: Whether gradients are timed too.
        cold: Whether calls after an eviction of the caches are timed too.
        mode: "quick" (this process) or "rigorous" (`processes` fresh ones).
        processes: Fresh processes of the rigorous mode.
        rounds: Maximum number of samples of each, per process.
        threads: Threads within an operator.
        device: The device to use.
        seed: Seed of the numbers and of the order.
        limit_gflop: Problems with more work than this in one direction are left out, and listed; None: no limit.
        take: Number of problems within the limit to run, evenly spread over the set; None: all.
        keep: Name of a problem that is always among those taken, or None.
        folder: Folder of a relative FILE.py, or None.
    """

    operator: str | None = None
    problems: str | None = None
    uses: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | tuple[str, ...] = "float32"
    bounds: tuple[float, float] | None = None
    frameworks: tuple[str, ...] = ("reference",)
    bare: str | None = None
    backward: bool = False
    cold: bool = False
    mode: str = "quick"
    processes: int = 8
    rounds: int = 30
    threads: int = 1
    device: str = "cpu"
    seed: int = 0
    limit_gflop: float | None = None
    take: int | None = None
    keep: str | None = None
    folder: str | None = None

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types as given: one, or one per input."""
        return (self.dtype,) if isinstance(self.dtype, str) else self.dtype

    @property
    def peak_dtype(self) -> str:
        """The element type in which peaks are measured: the first floating-point one, or else the first."""
        return next(filter(is_floating, self.dtypes), self.dtypes[0])

    def to_json(self) -> str:
        """The plan as a string that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """A plan from `to_json`."""
        known = json.loads(text)
        known["shapes"] = tuple(tuple(shape) for shape in known["shapes"])
        known["dtype"] = known["dtype"] if isinstance(known["dtype"], str) else tuple(known["dtype"])
        known["bounds"] = known["bounds"] and tuple(known["bounds"])
        return cls(**{**known, "uses": tuple(known["uses"]), "frameworks": tuple(known["frameworks"])})


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One problem in one direction, with its work by formula.

    Attributes:
        problem: The problem.
        direction: The forward pass, or also the gradients.
        outputs: Specifications of the outputs; None if the operator does not declare them.
        flops: Operations of one call, or None.
        moved_bytes: Bytes that one call must read and write, or None.
    """

    problem: Problem
    direction: Direction
    outputs: tuple[TensorSpec, ...] | None
    flops: int | None
    moved_bytes: int | None

    @property
    def key(self) -> dict[str, str]:
        """Its identifier in results."""
        return {
            "problem": self.problem.name,
            "title": self.problem.title,
            "use": self.problem.use,
            "direction": self.direction.name,
        }


def workloads(plan: Plan) -> tuple[list[Workload], list[dict[str, Any]]]:
    """The workloads to run, and those left out before anything runs, each with its reason.

    Raises:
        UsageError: The plan names nothing that could be run.
    """
    chosen, left_out = [], []
    for problem in _problems(plan):
        found: list[Workload] = []
        for direction in problem.directions if plan.backward else problem.directions[:1]:
            try:
                found.append(workload_of(plan, problem, direction))
            except ShapeError:
                raise
            except Deep5Error as error:
                raise UsageError(f"{problem.operator} with {', '.join(map(str, problem.inputs))}: {error}") from error
        within = [work for work in found if not _too_large(plan, work)]
        left_out += [{**work.key, "reason": reason} for work in found if (reason := _too_large(plan, work))]
        if within:
            chosen.append(within)
    if plan.take is not None and len(chosen) > plan.take:
        step, kept = len(chosen) / plan.take, [works[0].problem.name == plan.keep for works in chosen]
        taken = {int(step * number) for number in range(plan.take)}
        if True in kept and kept.index(True) not in taken:
            taken = {*sorted(taken)[:-1], kept.index(True)}
        for number, works in enumerate(chosen):
            if number not in taken:
                reason = f"{plan.take} of {len(chosen)} problems are taken (take={plan.take})"
                left_out += [{**work.key, "reason": reason} for work in works]
        chosen = [works for number, works in enumerate(chosen) if number in taken]
    return [work for works in chosen for work in works], left_out


def _too_large(plan: Plan, work: Workload) -> str:
    import psutil

    if plan.limit_gflop is not None and work.flops is not None and work.flops > plan.limit_gflop * 1e9:
        return f"its work is {quantities.count(work.flops, 'FLOP')} (limit_gflop={plan.limit_gflop:g})"
    # Inputs, outputs, and gradients are held several times: by NumPy, by every framework, and in its workspaces.
    needed, free = 8 * (work.moved_bytes or 0), psutil.virtual_memory().available
    if needed > free:
        return f"it may need {quantities.size(needed)}, and {quantities.size(free)} of memory are free"
    return ""


def _meant(operator: str) -> str:
    """The suggestion for a name that is not one of ONNX's operators; empty for the other kinds of names."""
    import onnx

    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    return "" if operator in names or not operator.isidentifier() else suggestion(operator, sorted(names))


def _problems(plan: Plan) -> tuple[Problem, ...]:
    for dtype in plan.dtypes:
        try:
            numpy_dtype(dtype)
        except TypeError as error:
            raise UsageError(
                f"got the element type {dtype!r}; allowed: a NumPy name, such as 'float32', 'float16' or 'bfloat16'"
                f"{suggestion(dtype, _TYPES)}"
            ) from error
        if plan.bounds is not None:
            check_bounds(plan.bounds)
            check_held(plan.bounds, dtype)
    if plan.problems is not None:
        if plan.shapes:
            raise UsageError("problems and shapes are both given; allowed: one of them")
        if len(plan.dtypes) > 1:
            raise UsageError(
                f"the element types {', '.join(plan.dtypes)} are given with the problems {plan.problems!r}; allowed: "
                "one for all tensors"
            )
        made = problem_set(plan.problems, plan.uses, plan.peak_dtype)
        operators = sorted({problem.operator for problem in made})
        if plan.operator is None or ":" in plan.operator or "." in plan.operator:
            return made
        if plan.operator not in operators:
            raise UsageError(
                f"the problems {plan.problems!r} are of {', '.join(operators)}; got the operator {plan.operator!r}; "
                "remedy: one of these, or FILE.py:CLASS for your own operator on these sizes"
            )
        return tuple(problem for problem in made if problem.operator == plan.operator)
    if plan.operator is None:
        raise UsageError("neither an operator nor problems are given; allowed: 'operator', 'problems', or both")
    if not plan.shapes:
        raise UsageError(
            f"the inputs of {plan.operator} are not known; remedy: --shape 64x64 for each of them, or a set such as "
            f"--problems deepbench.conv{_meant(plan.operator)}"
        )
    dtypes = each_input("--dtype", plan.dtypes, len(plan.shapes))
    inputs = tuple(TensorSpec(shape=shape, dtype=dtype) for shape, dtype in zip(plan.shapes, dtypes, strict=True))
    title = ", ".join("x".join(map(str, shape)) or "scalar" for shape in plan.shapes)
    name = plan.operator.rpartition(":")[2]
    needs = tuple(map(is_floating, dtypes))
    directions = (Direction(), *([Direction(name="backward", needs=needs)] if any(needs) else []))
    return (Problem(name=name, title=title, operator=plan.operator, inputs=inputs, directions=directions),)


def remarks(plan: Plan, works: Sequence[Workload], left_out: Sequence[Mapping[str, Any]]) -> list[str]:
    """Remarks on a plan: requested gradients that are not run, and layers that bare code builds differently.

    Args:
        plan: Defines whether gradients are requested.
        works: The workloads to run.
        left_out: Those left out, from `workloads`.
    """
    problems, said = {work.problem.name: work.problem for work in works}, []
    without = [problem for problem in problems.values() if len(problem.directions) == 1]
    if plan.backward and without:
        uses = sorted({problem.use for problem in without if problem.use})
        said.append(
            f"gradients are requested, and {len(without)} of {len(problems)} problems have only a forward pass"
            + (f" (use {', '.join(uses)})" if uses else "")
        )
    halves = [entry for entry in left_out if entry["direction"] != FORWARD and "take=" not in entry["reason"]]
    halves = [entry for entry in halves if entry["problem"] in problems]
    if halves:
        first = halves[0]
        said.append(
            f"{len(halves)} directions with gradients of problems whose forward pass runs are left out, such as "
            f"{first['problem']}, {first['direction']}: {first['reason']}"
        )
    if plan.bare and any(problem.operator in RECURRENT for problem in problems.values()):
        said.append(
            "recurrent layers: deep5 runs its own cells on most frameworks, and bare is the framework's layer; their "
            "ratio compares implementations and is not the overhead of deep5"
        )
    return said


def workload_of(plan: Plan, problem: Problem, direction: Direction) -> Workload:
    """A problem with its outputs and its work.

    Raises:
        ShapeError: The operator does not accept these inputs.
        UsageError: The operator does not exist.
    """
    from deep5.operators.contract import specs_of

    inputs, attributes = problem.inputs, {**problem.attributes, **plan.attributes}
    # A known problem defines its outputs and its work, even if a user's class computes it.
    outputs: tuple[TensorSpec, ...] | None = problem.outputs
    op_type, own = problem.operator, None
    if not outputs:
        operator = make_operator_of(plan, problem)
        outputs = specs_of(operator, inputs) if getattr(operator, "says_specs", True) else None
        if (fault := misfit(problem.operator, inputs, attributes)) is not None:
            raise ShapeError(f"{problem.operator} with {', '.join(map(str, inputs))}: {fault}")
        op_type, own = str(getattr(operator, "op_type", "")), getattr(operator, "flops", None)
    if outputs is None:
        return Workload(problem=problem, direction=direction, outputs=None, flops=None, moved_bytes=None)
    count = int(own(*inputs)) if callable(own) else flops(op_type, inputs, outputs, attributes)
    moved = moved_bytes(inputs, outputs)
    if direction.needs:
        more = None if callable(own) else backward_flops(op_type, inputs, outputs, attributes, direction.needs)
        count = None if count is None or more is None else count + more
        moved += backward_bytes(inputs, outputs, direction.needs)
    return Workload(problem=problem, direction=direction, outputs=outputs, flops=count, moved_bytes=moved)


def framework_of(plan: Plan, name: str) -> Framework:
    """A framework of a plan by its name, or by `FILE.py:NAME`; raises as `named_back_end`."""
    from deep5.recipe.frameworks import named_back_end

    return named_back_end(name, Path(plan.folder) if plan.folder else None)


def make_operator_of(plan: Plan, problem: Problem, framework: str = "reference") -> Operator:
    """The operator that a plan runs on a problem.

    Args:
        plan: Names it; otherwise, the problem does.
        problem: Defines attributes.
        framework: Framework of a native function.

    Raises:
        UsageError: It does not exist, does not accept the attributes, or is not an operator.
    """
    from deep5.recipe.operator_names import made_operator

    arguments = {**problem.attributes, **plan.attributes}
    folder = Path(plan.folder) if plan.folder else None
    return made_operator(plan.operator or problem.operator, arguments, folder=folder, framework=framework)
