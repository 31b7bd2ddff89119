"""deep5's checks in a user's test: a failure is the check's table, what is not supported is skipped."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from deep5.core.errors import Deep5Error, MissingDependency, Unsupported, UsageError, brief
from deep5.core.terminal import plain

if TYPE_CHECKING:
    import numpy as np

    from deep5.operators.checks.report import OperatorReport
    from deep5.training.optimizer_report import OptimizerReport

__all__ = ["Checks"]

_WIDTH = 100


class Checks:
    """The checks of the fixture `deep5_check`."""

    def operator(
        self,
        operator: Any,
        *shapes: Sequence[int],
        inputs: Sequence[np.ndarray] | None = None,
        dtypes: Sequence[str] = (),
        bounds: tuple[float, float] | None = None,
        reference: Callable[..., Any] | None = None,
        against: str | None = None,
        framework: str | None = None,
        strict: bool = True,
        seed: int = 0,
    ) -> OperatorReport:
        """Check an operator: values, gradients, memory, element types, layouts, empty inputs, NaN.

        Args:
            operator: An operator object, or a class without arguments.
            shapes: Shapes of its inputs, which are drawn: one for all, or one per input; none: 3 x 4.
            inputs: The inputs themselves, in place of shapes.
            dtypes: Element types of drawn inputs: one for all, or one per input.
            bounds: Drawn inputs are uniform between these; None: normal numbers.
            reference: A function of NumPy arrays, in float64, that returns the expected outputs.
            against: A framework that computes the expected outputs.
            framework: The framework that runs the operator; None: NumPy arrays, or its own.
            strict: Whether a Python operator must run under `array_api_strict`.
            seed: Seed of drawn inputs.

        Returns:
            Every check with its error and tolerance.

        Raises:
            UsageError: The arguments do not fit together.
        """
        from deep5.cli.check_operator import check_made, draw_inputs

        if inputs is not None and (shapes or dtypes or bounds is not None):
            raise UsageError("inputs are given, and shapes, dtypes or bounds too; allowed: one or the other")
        own = operator() if isinstance(operator, type) else operator
        with _reported():
            given = inputs
            if given is None:
                given = draw_inputs(own, [tuple(shape) for shape in shapes], dtypes, bounds, seed)
            report = check_made(own, given, reference=reference, against=against, framework=framework, strict=strict)
            if not report.failures and not report.values:
                _failed(f"{_table(report)}\nno value could be checked; remedy: reference=, a function in float64")
        _check_passed(report)
        return report

    def optimizer(self, optimizer: Any, *, framework: str = "reference", seed: int = 0) -> OptimizerReport:
        """Check an update rule, or an optimizer that owns its step: contract, training, exact resume, convergence.

        Args:
            optimizer: An object, a class without arguments, or a function that creates one.
            framework: It trains on this framework and on the reference; `"all"`: on every installed one.
            seed: Seed of the numbers of the rule's own checks.

        Returns:
            Every check.
        """
        from deep5.core.executors import StepOptimizer
        from deep5.run.check_optimizer import check_made_optimizer
        from deep5.training.rule import UpdateRule

        made = optimizer if callable(optimizer) else lambda: copy.deepcopy(optimizer)
        first = made()
        if not isinstance(first, (UpdateRule, StepOptimizer)):
            raise UsageError(
                f"got the optimizer {brief(first)}; allowed: an update rule, or an object with bind, step, state_dict "
                "and load_state_dict"
            )
        with _reported():
            report = check_made_optimizer(made, framework_name=None if framework == "all" else framework, seed=seed)
        _check_passed(report)
        return report

    def executor(self, framework: Any, *, seed: int = 0) -> None:
        """Check that a back-end agrees with the reference and meets the contract of `GraphExecutor`.

        Args:
            framework: The back-end object, a class without arguments, or its registered name.
            seed: Seed of the values.
        """
        from deep5.networks.check import check_executor

        with _reported():
            check_executor(framework() if isinstance(framework, type) else framework, seed=seed)

    def communicator(self, communicator: Any, *, mismatches: bool = True) -> None:
        """Check a communicator; all ranks call this together.

        Args:
            communicator: This rank's.
            mismatches: As for `deep5.check_communicator`.
        """
        from deep5.distributed.communicators.check import check_communicator

        with _reported():
            check_communicator(communicator, mismatches=mismatches)

    def scheme(self, scheme: Any, *, ranks: Sequence[int] = (1, 2, 3, 4), **options: Any) -> None:
        """Check that a communication scheme trains as its algorithm says, on ranks that are threads.

        Args:
            scheme: The scheme, not wrapped around an optimizer, or a class without arguments.
            ranks: Numbers of ranks.
            options: `algorithm` and `seed` of `deep5.check_scheme`.
        """
        from deep5.distributed.check_scheme import check_scheme

        with _reported():
            check_scheme(scheme() if isinstance(scheme, type) else scheme, ranks=ranks, **options)


@contextmanager
def _reported() -> Iterator[None]:
    """Turn a failed check into a failed test without a traceback, and a missing ability into a skipped test."""
    try:
        yield
    except (Unsupported, MissingDependency) as error:
        pytest.skip(str(error))
    except UsageError:
        raise  # the test's own arguments, where the traceback shows
    except (Deep5Error, AssertionError) as error:
        _failed(str(error))


def _check_passed(report: OperatorReport | OptimizerReport) -> None:
    if not report:
        _failed(_table(report))


def _failed(text: str) -> None:
    pytest.fail(text, pytrace=False)


def _table(report: Any) -> str:
    from io import StringIO

    from rich.console import Console

    text = StringIO()
    report.print(Console(file=text, width=_WIDTH, color_system=None, force_jupyter=False))
    return "\n".join(map(plain, text.getvalue().rstrip("\n").split("\n")))
