"""Candidates of a timing: an operator through deep5 on a framework, and hand-written on the bare framework."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.bench.plan import Plan, Workload, framework_of, make_operator_of
from deep5.core.errors import Deep5Error, Unsupported, UsageError
from deep5.core.seeds import generator
from deep5.core.tensors import TensorSpec, device, numpy_dtype, to_numpy
from deep5.measuring.loops import Work
from deep5.operators.contract import is_floating, several
from deep5.operators.drawn import below_extents, whole_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from deep5.core.framework import Framework

__all__ = ["Candidate", "Prepared", "candidates", "prepare", "random_values", "read", "reason_of", "set_numerics"]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A candidate to time.

    Attributes:
        framework: Name of its framework.
        bare: Whether the operator is hand-written for the framework; otherwise it runs through deep5.
    """

    framework: str
    bare: bool = False

    @property
    def label(self) -> str:
        """Name in results: "pytorch", "pytorch (bare)"."""
        return f"{self.framework} (bare)" if self.bare else self.framework


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A candidate with its inputs in its own memory.

    Attributes:
        work: The work to time.
        settings: Returns the settings that the framework reports; some know them only after a run.
        read: Returns the results of a call as NumPy arrays, outputs before gradients, waiting if necessary.
        renewed: Returns the same work with the elements of its inputs in other places, by number; None for hand-written
            code, which holds its inputs.
    """

    work: Work
    settings: Callable[[], dict[str, Any]]
    read: Callable[[Any], list[Any]]
    renewed: Callable[[int], Work] | None = None


def candidates(plan: Plan) -> list[Candidate]:
    """All frameworks of a plan, through deep5 and, if the plan has a hand-written version, bare."""
    kinds = (False, True) if plan.bare else (False,)
    return [Candidate(framework=name, bare=bare) for name in plan.frameworks for bare in kinds]


def set_numerics(engine: Framework, plan: Plan) -> None:
    """Set an accelerator's framework to the defaults of training: no TF32, bit-identical results.

    Call it before `set_threads`, which starts some frameworks. On the host there is nothing to set, and TensorFlow
    could not undo it.

    Raises:
        UsageError: As for `Framework.set_numerics`.
    """
    if device(plan.device).kind != "cpu":
        engine.set_numerics(deterministic=True, tf32=False)


def random_values(
    work: Workload, seed: int, bounds: tuple[float, float] | None = None
) -> tuple[tuple[NDArray[Any], ...], tuple[NDArray[Any] | None, ...]]:
    """Inputs and output gradients, the same for every candidate: uniform in [-scale, scale].

    Integers start at 0 and are smaller than every dimension, as in `deep5 check operator`, so that they can be indices.

    Args:
        work: Defines shapes and element types.
        seed: Seed of the numbers.
        bounds: Draw inputs between these bounds instead.

    Returns:
        One array per input; one gradient per output, None if the output is not floating-point; no gradients for the
        forward pass.
    """
    problem = work.problem
    scales = problem.scales or (1.0,) * len(problem.inputs)
    below = below_extents([spec.shape for spec in problem.inputs])
    inputs = tuple(
        _random(spec, scale, seed, problem.name, number)
        if is_floating(spec.dtype) and bounds is None
        else _within(spec, below, bounds, seed, problem.name, number)
        for number, (spec, scale) in enumerate(zip(problem.inputs, scales, strict=True))
    )
    if not work.direction.needs or work.outputs is None:
        return inputs, ()
    grads = tuple(
        _random(spec, 1.0, seed, problem.name, "gradient", number) if is_floating(spec.dtype) else None
        for number, spec in enumerate(work.outputs)
    )
    return inputs, grads


def _random(spec: TensorSpec, scale: float, seed: int, *purpose: str | int) -> NDArray[Any]:
    import numpy as np

    shape = tuple(int(extent) for extent in spec.shape)
    draw = generator(seed, "operator", *purpose)
    values: NDArray[Any] = draw.random(shape, dtype=np.float64 if spec.dtype == "float64" else np.float32)
    values = (2 * values - 1) * values.dtype.type(scale)
    return values.astype(numpy_dtype(spec.dtype), copy=False)


def _within(
    spec: TensorSpec, below: int, bounds: tuple[float, float] | None, seed: int, *purpose: str | int
) -> NDArray[Any]:
    shape = tuple(int(extent) for extent in spec.shape)
    draw = generator(seed, "operator", *purpose)
    if bounds is None or not is_floating(spec.dtype):
        return whole_numbers(draw, shape, spec.dtype, below, bounds)
    values: NDArray[Any] = draw.uniform(*bounds, shape).astype(numpy_dtype(spec.dtype))
    return values


def prepare(
    candidate: Candidate, plan: Plan, work: Workload, inputs: Sequence[Any], output_grads: Sequence[Any]
) -> Prepared:
    """Prepare a candidate for timing, without computing anything yet.

    Args:
        candidate: The candidate.
        plan: Defines operator, device, and threads.
        work: The workload.
        inputs: NumPy arrays.
        output_grads: NumPy arrays, or None.

    Raises:
        Unsupported: It cannot run this, with the reason.
    """
    if candidate.bare:
        call, synchronize, reader = _by_hand(plan)(
            candidate.framework,
            work.problem,
            inputs=tuple(inputs),
            output_grads=tuple(output_grads),
            needs=work.direction.needs,
            threads=plan.threads,
            device=plan.device,
        )
        return Prepared(work=Work(call=call, synchronize=synchronize), settings=dict, read=reader)
    engine = framework_of(plan, candidate.framework)
    operator = make_operator_of(plan, work.problem, engine.name.partition(":")[0])
    executor = engine.operator_executor(operator, device=plan.device)
    native, grads = executor.arrays(*inputs), tuple[Any, ...]()
    if work.direction.needs:
        if work.outputs is None:
            first = read(executor.inference(*native))
            output_grads = tuple(
                _random(TensorSpec(shape=value.shape, dtype=value.dtype.name), 1.0, plan.seed, work.problem.name, index)
                if is_floating(value.dtype.name)
                else None
                for index, value in enumerate(first)
            )
        grads = tuple(None if grad is None else executor.arrays(grad)[0] for grad in output_grads)

    def of(values: tuple[Any, ...]) -> Work:
        if not work.direction.needs:
            return Work(call=executor.inference, arguments=values, synchronize=executor.synchronize)
        call = partial(executor.inference_and_backprop, values, grads, needs=work.direction.needs)
        return Work(call=call, synchronize=executor.synchronize)

    def renewed(number: int) -> Work:
        # Not new values: they may have to be indices, or positive.
        return of(executor.arrays(*(np.roll(value, number + 1) for value in inputs)))

    return Prepared(work=of(native), settings=executor.settings, read=read, renewed=renewed)


def read(outputs: Any) -> list[NDArray[Any]]:
    """All results of a call as NumPy arrays: outputs, then the existing gradients."""
    found: list[NDArray[Any]] = []
    for value in several(outputs):
        if isinstance(value, (tuple, list)):
            found += read(tuple(value))
        elif value is not None:
            found.append(to_numpy(value))
    return found


def _by_hand(plan: Plan) -> Callable[..., tuple[Callable[..., Any], Callable[[], object], Callable[[Any], list[Any]]]]:
    """The function under the plan's `bare`; it returns a call, a function that waits for it, and one that reads its
    results."""
    from deep5.recipe.file import named_in_file

    text = plan.bare or ""
    if ".py:" in text:
        made = named_in_file(text, Path(plan.folder) if plan.folder else None)
    else:
        module, _, name = text.partition(":")
        try:
            made = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise UsageError(
                f"'bare' names {text!r}, which cannot be imported ({error}); allowed: FILE.py:NAME"
            ) from error
    if not callable(made):
        raise UsageError(f"'bare' gives a {type(made).__name__}; allowed: a function of framework and problem")
    return made  # type: ignore[no-any-return]


def reason_of(error: Exception) -> str:
    """Why a candidate could not run, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, Unsupported):
        return text
    return f"failed: {text}" if isinstance(error, Deep5Error) else f"raised {type(error).__name__}: {text[:300]}"
