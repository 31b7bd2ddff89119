"""Run drawn cases: who answers, who agrees, and what explains a disagreement."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import deep5 as d5
from deep5.core.errors import Deep5Error
from deep5.networks import Network
from drawn_answers import Case, evaluated, plainly
from drawn_bounds import apart
from drawn_rules import Rule, explained, left_out, open_rule, rules_of
from drawn_thirds import third
from opset_cases import typed

__all__ = ["Outcome", "Truth", "outcome", "truth"]

PLAIN, EVALUATOR = "onnxruntime", "onnx.reference"


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The right outputs of a case, as far as anything says.

    Attributes:
        outputs: The right outputs, or None if nothing computes them.
        who: Which implementations gave or confirm them.
        rule: The explanation of a deviation, if there is one.
        open: A disagreement that no rule explains.
    """

    outputs: Sequence[Any] | None
    who: str
    rule: Rule | None = None
    open: str = ""


def truth(case: Case) -> Truth:
    """Compare ONNX Runtime with ONNX's reference; where they do not agree, a third implementation decides."""
    answers = {PLAIN: plainly(case), EVALUATOR: evaluated(case.model, case.fed)}
    given = {who: answer.outputs for who, answer in answers.items() if answer.outputs is not None}
    said = apart(case, given[PLAIN], given[EVALUATOR]) if len(given) == 2 else None
    if len(given) == 2 and said is None and not any(rule.always for rule in rules_of(case)):
        return Truth(outputs=given[PLAIN], who="both")
    undecided = open_rule(case)
    if undecided is not None:  # nothing is right there
        return Truth(outputs=None, who="undefined", rule=undecided)
    right = third(case)
    if right is None:
        who = PLAIN if PLAIN in given else EVALUATOR if given else "neither"
        return Truth(outputs=given.get(who), who=who, open=f"{EVALUATOR} has {said}" if said else "")
    right = _typed(case, right, next(iter(given.values()), None))
    found = {who: text for who, outputs in given.items() if (text := apart(case, right, outputs)) is not None}
    if not found:
        return Truth(outputs=right, who="a third")

    def within(who: str) -> Callable[[float], bool]:
        return lambda least: apart(case, right, given[who], least=least) is None

    rule = explained(case, {who: within(who) for who in found})
    listed = "; ".join(f"{who} has {text}" for who, text in found.items())
    return Truth(outputs=right, who="a third", rule=rule, open="" if rule is not None else f"by a third, {listed}")


def _typed(case: Case, right: Sequence[Any], given: Sequence[Any] | None) -> Sequence[Any]:
    """A third implementation's outputs, which are in float64, in the element types that the schema requires."""
    if given is None:
        return typed(case.model, list(right))
    kinds = [np.asarray(each[0] if isinstance(each, list) and each else each).dtype for each in given]
    with np.errstate(over="ignore"):  # float16 ends at 65504
        return [
            [np.asarray(one).astype(kind) for one in each] if isinstance(each, list) else np.asarray(each).astype(kind)
            for each, kind in zip(right, kinds, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a back-end did: `agreed`, `explained` by a rule, `refused`, `wrong`, `failed`, or `unanswered` where nothing
    says what is right.
    """

    kind: str
    reason: str = ""


def outcome(case: Case, framework: str, right: Truth) -> Outcome:
    """Import the case's file, run it on a back-end, and compare."""
    if right.outputs is None:
        return Outcome(kind="unanswered", reason=right.who)
    model = case.declared(right.outputs)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            executor = d5.framework(framework).executor(Network.from_onnx(model), device="cpu")
            got = executor.inference(dict(case.fed), training=case.drawn.training)
            outputs = [_array(got[value.name]) for value in model.graph.output]
    except Deep5Error as error:
        return Outcome(kind="refused", reason=_short(str(error)))
    except Exception as error:  # of the framework
        return Outcome(kind="failed", reason=f"{type(error).__name__}: {_short(str(error))}")
    said = apart(case, right.outputs, outputs)
    if said is None:
        return Outcome(kind="agreed")
    allowed = left_out(case, framework)
    if allowed is None:
        return Outcome(kind="wrong", reason=said)
    rule, elements = allowed
    filled = [_except(one, other, elements) for one, other in zip(right.outputs, outputs, strict=True)]
    said = apart(case, right.outputs, filled)
    return Outcome(kind="explained", reason=rule.name) if said is None else Outcome(kind="wrong", reason=said)


def _except(right: Any, got: Any, elements: Callable[[np.ndarray], np.ndarray]) -> Any:
    """An output with some elements of the right one."""
    fits = isinstance(right, np.ndarray | np.generic) and np.shape(right) == np.shape(got)
    return np.where(elements(right), right, got) if fits else got


def _array(value: Any) -> Any:
    if value is None or isinstance(value, list | tuple):
        return value if value is None else [_array(each) for each in value]
    return d5.to_numpy(value)


def _short(text: str) -> str:
    return re.split("; (?:allowed|remedy):", " ".join(text.split()))[0][:240]
