"""The shipped suites pass correct implementations and catch each deliberate defect."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import RuleError, ShapeError, UnknownName
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.core.tensors import to_numpy
from deep5.networks.check import check_executor
from deep5.networks.judge import ConformanceError
from deep5.training.check import check_optimizer
from deep5.training.rule import UpdateRule

pytestmark = pytest.mark.usefixtures("warm")

XP = d5.array_namespace

RULES = {
    "sgd": d5.SGD(),
    "momentum": d5.Momentum(),
    "nesterov": d5.Momentum(nesterov=True),
    "adam": d5.Adam(),
    "lars": d5.LARS(),
    "accelegrad": d5.AcceleGrad(),
}


@pytest.mark.parametrize("name", RULES)
def test_our_rules_keep_the_contract(name: str) -> None:
    before = dict(vars(RULES[name]))
    check_optimizer(RULES[name])
    assert vars(RULES[name]) == before


class Plain(UpdateRule):
    hyper = ("lr",)

    def __init__(self, lr: float = 0.1) -> None:
        self.lr = lr

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - self.lr * grad, state


class BakedText(Plain):
    """A value computed from a hyperparameter, hidden in a string."""

    def __init__(self, lr: float = 0.1, scale: float = 2.0) -> None:
        super().__init__(lr)
        self.text = str(lr * 2)

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - float(self.text) * grad, state


class BakedHalf(Plain):
    """The hyperparameter is read, and a value computed from it is stored, too."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(lr)
        self.thousandths = int(lr * 1000)

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - self.lr * grad - self.thousandths / 1000 * grad, state


class BakedClosure(Plain):
    """A function that reads the hyperparameter of the original rule, not of the traced copy."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(lr)
        self.rate = lambda: self.lr

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - self.rate() * grad, state


class WithState(Plain):
    def init_state(self, param: Any) -> Any:
        return {"m": XP(param).zeros_like(param)}


class InPlace(WithState):
    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        m = state["m"]
        m += grad
        return param - self.lr * m, {"m": m}


class InPlaceGradient(Plain):
    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        grad *= 2.0
        return param - self.lr * grad, state


class WritesState(WithState):
    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        state["m"] = state["m"] + grad
        return param - self.lr * state["m"], state


class OtherState(WithState):
    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - self.lr * grad, {"n": state["m"]}


class OtherLibrary(Plain):
    """NumPy accepts numbers where the standard accepts only arrays."""

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - self.lr * XP(param).sqrt(2.0) * grad, state


class Scalar(Plain):
    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return self.lr * 2, state


class LosesShape(WithState):
    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - self.lr * grad, {"m": self.lr * 2}


class RandomInput(Plain):
    def new_input(self, info: StepInfo) -> Mapping[str, float]:
        return {"noise": random.random()}  # noqa: S311 - a deliberate defect

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - self.lr * self.noise * grad, state

    noise: Any


class RandomUpdate(Plain):
    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - self.lr * random.random() * grad, state  # noqa: S311 - a deliberate defect


class Counts(Plain):
    """A counter in an object: it differs for every parameter, whatever its scope."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(lr)
        self.seen: list[int] = []

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        self.seen.append(1)
        return param - self.lr / len(self.seen) * grad, state


class SecondIsOther(Plain):
    """Treats the second parameter differently, with the same result in every run of the same parameters."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(lr)
        self.seen: list[int] = []

    def new_input(self, info: StepInfo) -> Mapping[str, float]:
        self.seen.clear()
        return {}

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        self.seen.append(1)
        return param - self.lr * (2 if len(self.seen) == 2 else 1) * grad, state


class NoScope(Plain):
    def sums(self, grad: Any, param: Any, state: Any) -> Any:
        return {"square": XP(param).sum(grad * grad)}

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - self.lr * grad / XP(param).sqrt(self.square), state

    square: Any


class Threshold(Plain):
    """Branches on a Python number when it is traced; the number changes in a schedule."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(lr)
        self.own = [self]

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - (grad if self.own[0].lr > 0.09 else 0.5 * grad) * self.lr, state


WRONG: dict[str, tuple[UpdateRule, str]] = {
    "text": (BakedText(), r"BakedText.lr has no effect; allowed: read self\.lr in the methods"),
    "half": (BakedHalf(), r"BakedHalf\(lr=0\.07.*\) differs from one whose lr was set to .*: a value computed from it"),
    "closure": (BakedClosure(), r"BakedClosure at step \d+: the attribute 'rate' is another one"),
    "threshold": (Threshold(), r"Threshold at step \d+: the attribute 'own' is another one"),
    "in place": (InPlace(), r"InPlace\.update_rule changed its argument 'state' in place; allowed: new arrays"),
    "gradient in place": (InPlaceGradient(), "changed its argument 'grad' in place"),
    "writes state": (WritesState(), "WritesState.update_rule changed its argument 'state' in place"),
    "state keys": (OtherState(), r"returned the states \['n'\]; allowed: those of init_state, \['m'\]"),
    "other library": (OtherLibrary(), "OtherLibrary.update_rule fails on arrays of array_api_strict"),
    "scalar": (Scalar(), r"Scalar\.update_rule returned the parameter as .*float64\(\); allowed: .*\(5, 4\)"),
    "state's shape": (LosesShape(), r"returned the state 'm' as .*float64\(\); allowed"),
    "random input": (RandomInput(), r"RandomInput\.new_input returned noise=.* for the same step 0"),
    "random update": (RandomUpdate(), "two traces of RandomUpdate differ"),
    "counts": (Counts(), "two traces of Counts differ|Counts changes"),
    "order of parameters": (SecondIsOther(), "two traces of SecondIsOther differ"),
    "scope": (
        NoScope(),
        r"NoScope\.sums returned \['square'\] but its scope is 'element'; allowed: 'tensor' or 'model'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_caught(name: str) -> None:
    rule, message = WRONG[name]
    with pytest.raises(RuleError, match=message):
        check_optimizer(rule)


@pytest.mark.parametrize("name", ["pytorch", "reference"])
def test_our_back_ends_keep_the_contract(name: str) -> None:
    check_executor(name)


def test_an_unknown_back_end_is_refused() -> None:
    with pytest.raises(UnknownName, match="unknown framework 'torhc'"):
        check_executor("torhc")


class Wrapped:
    """The reference's executor; each defect overrides one method."""

    def __init__(self, network: Any) -> None:
        self.inner: Any = d5.framework("reference").executor(network)
        self.network, self.device, self.capabilities = network, self.inner.device, self.inner.capabilities
        for name in vars(GraphExecutor):
            if not name.startswith("_") and not hasattr(self, name):
                setattr(self, name, getattr(self.inner, name))


class Back(Framework):
    name = "wrong"

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make

    def version(self) -> str:
        return "0"

    def executor(self, network: Any, *, device: Any = "cpu", seed: int = 0) -> Any:
        return self.make(network)

    def supports(self, node: Any) -> Any:
        return d5.Support(True)

    def operator(self, operator: Any) -> Any:
        return operator.forward

    def set_threads(self, threads: int) -> None:
        d5.framework("reference").set_threads(threads)


class ScalesOneGradient(Wrapped):
    def gradients(self) -> Any:
        found = self.inner.gradients()
        name = list(found)[-1]
        return {**found, name: found[name] * 1.001}


class IgnoresAccumulate(Wrapped):
    def inference_and_backprop(self, inputs: Any, loss: str = "loss", **keywords: Any) -> Any:
        return self.inner.inference_and_backprop(inputs, loss, **{**keywords, "accumulate": False})


class AddsToASpentStep(Wrapped):
    """A training step that leaves its gradients for later calls to add to."""

    def train_step(self, rule: Any, loss: str = "loss", **keywords: Any) -> Any:
        step = self.inner.train_step(rule, loss, **keywords)
        step._spend = lambda: None
        return step


class ForgetsTheHalves(Wrapped):
    """`apply` consumes gradients that it should not."""

    def train_step(self, rule: Any, loss: str = "loss", **keywords: Any) -> Any:
        step = self.inner.train_step(rule, loss, **keywords)
        apply = step.apply

        def forgetting(gradients: Any, info: Any) -> None:
            apply(gradients, info)
            self.inner.spend()

        step.apply = forgetting
        return step


class AddsByBroadcasting(Wrapped):
    """Sums over other batch sizes that give some result."""

    def inference_and_backprop(self, inputs: Any, loss: str = "loss", **keywords: Any) -> Any:
        try:
            return self.inner.inference_and_backprop(inputs, loss, **keywords)
        except ShapeError as error:
            if "accumulate" not in str(error):
                raise
            return self.inner.inference_and_backprop(inputs, loss, **{**keywords, "accumulate": False})


class TrainsOnNothing(Wrapped):
    def inference_and_backprop(self, inputs: Any, loss: str = "loss", **keywords: Any) -> Any:
        empty = any(len(value) == 0 for value in inputs.values())
        return {} if empty else self.inner.inference_and_backprop(inputs, loss, **keywords)


class NormalisesNothing(Wrapped):
    def inference(self, inputs: Any, **keywords: Any) -> Any:
        empty = any(len(value) == 0 for value in inputs.values())
        return self.inner.inference(inputs, **({} if empty else keywords))


class IgnoresLossScale(Wrapped):
    def inference_and_backprop(self, inputs: Any, loss: str = "loss", **keywords: Any) -> Any:
        return self.inner.inference_and_backprop(inputs, loss, **{**keywords, "loss_scale": 1.0})


class IgnoresWrt(Wrapped):
    def inference_and_backprop(self, inputs: Any, loss: str = "loss", **keywords: Any) -> Any:
        return self.inner.inference_and_backprop(inputs, loss, **{**keywords, "wrt": None})


class ForgetsACallback(Wrapped):
    def inference_and_backprop(self, inputs: Any, loss: str = "loss", **keywords: Any) -> Any:
        call, first = keywords.get("on_gradient"), next(iter(self.network.parameter_specs))
        if call is not None:
            keywords["on_gradient"] = lambda name, value: call(name, value) if name != first else None
        return self.inner.inference_and_backprop(inputs, loss, **keywords)


class CallsBackTooEarly(Wrapped):
    def inference_and_backprop(self, inputs: Any, loss: str = "loss", **keywords: Any) -> Any:
        call = keywords.get("on_gradient")
        if call is not None:
            keywords["on_gradient"] = lambda name, value: call(name, value * 0.5)
        return self.inner.inference_and_backprop(inputs, loss, **keywords)


class ChangesTheNetwork(Wrapped):
    def inference_and_backprop(self, inputs: Any, loss: str = "loss", **keywords: Any) -> Any:
        values = self.network.model.graph.initializers
        name = next(iter(self.network.parameter_specs))
        import onnx_ir

        values[name].const_value = onnx_ir.tensor(self.network.initial(name) * 1.5, name=name)
        return self.inner.inference_and_backprop(inputs, loss, **keywords)


class MisreadsStrides(Wrapped):
    def inference(self, inputs: Any, **keywords: Any) -> Any:
        def misread(value: np.ndarray) -> np.ndarray:
            flat = value.ravel(order="K") if value.base is None else value.base.reshape(-1)[: value.size]
            return flat.reshape(value.shape).astype(value.dtype)

        return self.inner.inference({name: misread(value) for name, value in inputs.items()}, **keywords)


class StaleGradients(Wrapped):
    def gradients(self) -> Any:
        try:
            return self.inner.gradients()
        except d5.Deep5Error:
            return {name: np.zeros(1) for name in self.network.parameter_specs}


class AcceptsAnything(Wrapped):
    def inference(self, inputs: Any, **keywords: Any) -> Any:
        specs = self.network.inputs
        return self.inner.inference({n: v.astype(specs[n].dtype) for n, v in inputs.items() if n in specs}, **keywords)


class OtherError(Wrapped):
    def inference(self, inputs: Any, **keywords: Any) -> Any:
        try:
            return self.inner.inference(inputs, **keywords)
        except ShapeError as error:
            raise ValueError(str(error)) from error


class AliasesState(Wrapped):
    def state_dict(self) -> Any:
        return {**self.inner.parameters(), **self.inner.buffers()}


class RoundsState(Wrapped):
    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict({n: v.astype(np.float32).astype(v.dtype) for n, v in state.items()})


class ReadsTransposed(Wrapped):
    def read(self, names: Any, out: Any) -> None:
        self.inner.read(list(reversed(names)), out)


class ExportsInitialValues(Wrapped):
    def export(self, *, evaluation: bool = True) -> Any:
        return self.network


class ExportsTheLastIterate(Wrapped):
    def export(self, *, evaluation: bool = True) -> Any:
        return self.inner.export(evaluation=False)


class ChangesInputs(Wrapped):
    def inference_and_backprop(self, inputs: Any, loss: str = "loss", **keywords: Any) -> Any:
        outputs = self.inner.inference_and_backprop(inputs, loss, **keywords)
        if keywords.get("wrt"):
            inputs["input"][...] *= 1.0 + 1e-7
        return outputs


class LosesPrecision(Wrapped):
    def inference(self, inputs: Any, **keywords: Any) -> Any:
        return {n: to_numpy(v).astype(np.float32) for n, v in self.inner.inference(inputs, **keywords).items()}


class BakesTheRule(Wrapped):
    def train_step(self, rule: Any, loss: str = "loss", **keywords: Any) -> Any:
        import copy

        return self.inner.train_step(copy.copy(rule), loss, **keywords)


class IgnoresGroups(Wrapped):
    def train_step(self, rule: Any, loss: str = "loss", **keywords: Any) -> Any:
        return self.inner.train_step(rule, loss, **{**keywords, "groups": ()})


class IgnoresTheModifier(Wrapped):
    def train_step(self, rule: Any, loss: str = "loss", **keywords: Any) -> Any:
        return self.inner.train_step(rule, loss, **{**keywords, "modifier": None})


class StepsWrongly(Wrapped):
    """A training step whose options are changed first."""

    @staticmethod
    def changed(keywords: dict[str, Any]) -> dict[str, Any]:
        return keywords

    def train_step(self, rule: Any, loss: str = "loss", **keywords: Any) -> Any:
        return self.inner.train_step(rule, loss, **type(self).changed(keywords))


class IgnoresThePipeline(StepsWrongly):
    @staticmethod
    def changed(keywords: dict[str, Any]) -> dict[str, Any]:
        return {**keywords, "pipeline": None}


class IgnoresTheClipping(StepsWrongly):
    @staticmethod
    def changed(keywords: dict[str, Any]) -> dict[str, Any]:
        if found := keywords.get("pipeline"):
            kept = {**found.describe(), "clip_norm": None, "clip_value": None}
            keywords = {**keywords, "pipeline": d5.GradientPipeline(**kept)}
        return keywords


class BakesThePipeline(StepsWrongly):
    @staticmethod
    def changed(keywords: dict[str, Any]) -> dict[str, Any]:
        import copy

        return {**keywords, "pipeline": copy.copy(keywords.get("pipeline"))}


class IgnoresTheSecondGroup(StepsWrongly):
    @staticmethod
    def changed(keywords: dict[str, Any]) -> dict[str, Any]:
        return {**keywords, "groups": keywords.get("groups", ())[:1]}


class MisnamesForTheModifier(StepsWrongly):
    @staticmethod
    def changed(keywords: dict[str, Any]) -> dict[str, Any]:
        call = keywords.get("modifier")
        wrong = None if call is None else lambda name, param, grad: call("x", param, grad)
        return {**keywords, "modifier": wrong}


class ModifiesOnlyGroups(StepsWrongly):
    @staticmethod
    def changed(keywords: dict[str, Any]) -> dict[str, Any]:
        return keywords if keywords.get("groups") else {**keywords, "modifier": None}


class StepsOnTheFirstLoss(Wrapped):
    def train_step(self, rule: Any, loss: str = "loss", **keywords: Any) -> Any:
        return self.inner.train_step(rule, "lost" if loss == "lost" else "loss", **keywords)


class BackpropagatesWrongly(Wrapped):
    """`inference_and_backprop` with other options, under a condition on those that were given."""

    @staticmethod
    def changed(loss: str, keywords: dict[str, Any]) -> dict[str, Any]:
        return keywords

    def inference_and_backprop(self, inputs: Any, loss: str = "loss", **keywords: Any) -> Any:
        return self.inner.inference_and_backprop(inputs, loss, **type(self).changed(loss, keywords))


def ignoring(option: str, where: Callable[[str, dict[str, Any]], Any]) -> type[Wrapped]:
    def changed(loss: str, keywords: dict[str, Any]) -> dict[str, Any]:
        return {**keywords, option: None if option == "on_gradient" else 1.0} if where(loss, keywords) else keywords

    return type("Ignores", (BackpropagatesWrongly,), {"changed": staticmethod(changed)})


class CallsBackUnscaled(Wrapped):
    def inference_and_backprop(self, inputs: Any, loss: str = "loss", **keywords: Any) -> Any:
        call, scale = keywords.get("on_gradient"), keywords.get("loss_scale", 1.0)
        if call is not None and scale != 1:
            keywords["on_gradient"] = lambda name, value: call(name, value / scale)
        return self.inner.inference_and_backprop(inputs, loss, **keywords)


class LosesNaN(Wrapped):
    def inference(self, inputs: Any, **keywords: Any) -> Any:
        return {name: np.nan_to_num(to_numpy(v)) for name, v in self.inner.inference(inputs, **keywords).items()}


class LosesNaNOfGradients(Wrapped):
    def gradients(self) -> Any:
        return {name: np.nan_to_num(value) for name, value in self.inner.gradients().items()}


class ClipsInfinities(Wrapped):
    def inference(self, inputs: Any, **keywords: Any) -> Any:
        clipped = {n: np.clip(v, -1e30, 1e30) if v.dtype.kind == "f" else v for n, v in inputs.items()}
        return self.inner.inference(clipped if "double" in self.network.outputs else inputs, **keywords)


class StaysPoisoned(Wrapped):
    bad = False

    def inference(self, inputs: Any, **keywords: Any) -> Any:
        self.bad |= any(v.dtype.kind == "f" and bool(np.isnan(v).any()) for v in inputs.values())
        made = self.inner.inference(inputs, **keywords)
        return {name: value * 2 for name, value in made.items()} if self.bad else made


class ForgetsLateSteps(Wrapped):
    def inference(self, inputs: Any, **keywords: Any) -> Any:
        if (info := keywords.get("info")) is not None and info.step > 10:
            keywords["info"] = info._replace(step=0)
        return self.inner.inference(inputs, **keywords)


class ReusesOutputs(Wrapped):
    """Sixteen results in turn use the same memory."""

    def __init__(self, network: Any) -> None:
        super().__init__(network)
        self.kept: dict[Any, Any] = {}
        self.number = 0

    def inference(self, inputs: Any, **keywords: Any) -> Any:
        self.number += 1
        made = {}
        for name, value in self.inner.inference(inputs, **keywords).items():
            key = (get_ident(), name, np.shape(value), self.number % 16)
            made[name] = self.kept.setdefault(key, np.empty_like(np.asarray(value)))
            made[name][...] = value
        return made


def wrong_where(fires: Callable[[np.ndarray], bool]) -> type[Wrapped]:
    def inference(self: Any, inputs: Any, **keywords: Any) -> Any:
        made = self.inner.inference(inputs, **keywords)
        return {name: value * 2 for name, value in made.items()} if fires(inputs["input"]) else made

    return type("WrongWhere", (Wrapped,), {"inference": inference})


class OfManyThreads(Wrapped):
    def settings(self) -> Any:
        return {**self.inner.settings(), "threads": 77}


class OfAnotherType(Wrapped):
    def settings(self) -> Any:
        return {**self.inner.settings(), "dtype": "float16"}


BROKEN: dict[str, tuple[type[Wrapped], str]] = {
    "scales one gradient": (ScalesOneGradient, "the gradient by .* is off by 0.001 of the reference's; allowed: 1e-09"),
    "ignores accumulate": (IgnoresAccumulate, "accumulate=True: the gradient by"),
    "adds to a spent step": (
        AddsToASpentStep,
        "accumulate=True after a training step, which uses its gradients up: the gradient by .* is off by",
    ),
    "forgets the halves": (ForgetsTheHalves, "accumulate=True after backprop and apply, which leave the gradients: "),
    "adds by broadcasting": (
        AddsByBroadcasting,
        r"accumulate=True over batches of 4 and 5 with wrt=\['input'\] was accepted; allowed: it raises ShapeError",
    ),
    "trains on nothing": (TrainsOnNothing, "training on an empty batch was accepted; allowed: it raises ShapeError"),
    "normalises nothing": (NormalisesNothing, "training on an empty batch was accepted; allowed: it raises ShapeError"),
    "ignores loss_scale": (IgnoresLossScale, "loss_scale=8: the gradient by"),
    "ignores wrt": (IgnoresWrt, "wrt=.*: gives gradients by"),
    "forgets a callback": (ForgetsACallback, "called on_gradient for"),
    "calls back too early": (CallsBackTooEarly, "on_gradient got a value that is not of gradients"),
    "changes the network": (ChangesTheNetwork, "changed the network; allowed: an executor of its own values"),
    "misreads strides": (MisreadsStrides, "inference on strided inputs: the output"),
    "stale gradients": (StaleGradients, r"gradients\(\) before inference_and_backprop was accepted"),
    "accepts anything": (AcceptsAnything, "inference .* accepted; allowed: it raises ShapeError|raised KeyError"),
    "other error": (OtherError, "inference without 'label' raised ValueError: .*; allowed: ShapeError"),
    "aliases its state": (AliasesState, "has a gradient of slope .*, the central difference"),
    "rounds its state": (RoundsState, "load_state_dict gave other bits|has a gradient of slope"),
    "reads in another order": (ReadsTransposed, "read gave other bits"),
    "exports initial values": (ExportsInitialValues, "export gave other bits"),
    "exports the last iterate": (ExportsTheLastIterate, "after 20 steps of accelegrad '.* exported'"),
    "changes inputs": (ChangesInputs, "inference_and_backprop changed 'input'"),
    "loses precision": (LosesPrecision, "is float32.*; allowed: float64"),
    "bakes the rule": (BakesTheRule, "the losses of 20 steps of adam is off by"),
    "ignores groups": (IgnoresGroups, "the losses of 20 steps of momentum"),
    "ignores the modifier": (IgnoresTheModifier, "the losses of 20 steps of momentum"),
    "ignores the pipeline": (IgnoresThePipeline, "the losses of 20 steps of adam lacks 1 NaN or infinities"),
    "ignores the clipping": (IgnoresTheClipping, "the losses of 20 steps of adam is off by"),
    "bakes the pipeline": (BakesThePipeline, "the losses of 20 steps of adam is off by"),
    "ignores the second group": (IgnoresTheSecondGroup, "the losses of 20 steps of momentum is off by"),
    "misnames for the modifier": (MisnamesForTheModifier, "the losses of 20 steps of momentum is off by"),
    "modifies only groups": (ModifiesOnlyGroups, "the losses of 20 steps of accelegrad is off by"),
    "steps on the first loss": (StepsOnTheFirstLoss, "a training step on the second loss"),
    "ignores a loss scale with accumulate": (
        ignoring("loss_scale", lambda loss, given: given.get("accumulate")),
        "accumulate=True, loss_scale=0.3: the gradient by",
    ),
    "ignores a loss scale with wrt": (
        ignoring("loss_scale", lambda loss, given: given.get("wrt")),
        "loss_scale=3, wrt=.*: the gradient by",
    ),
    "ignores the loss scale of a second loss": (
        ignoring("loss_scale", lambda loss, given: loss == "second"),
        "of the second loss, at step 5, with loss_scale=3: the gradient by",
    ),
    "ignores odd loss scales": (
        ignoring("loss_scale", lambda loss, given: given.get("loss_scale", 1.0) in (0.3, 3.0)),
        "loss_scale=0.3: the gradient by",
    ),
    "does not call back with wrt": (
        ignoring("on_gradient", lambda loss, given: given.get("wrt")),
        r"wrt=.*: called on_gradient for \[\]",
    ),
    "calls back unscaled": (CallsBackUnscaled, "loss_scale=8: on_gradient got a value that is not of gradients"),
    "loses NaN": (LosesNaN, "inference with NaN: the output"),
    "loses NaN of gradients": (LosesNaNOfGradients, "backprop with NaN: the gradient by"),
    "clips infinities": (ClipsInfinities, "inference with inf: the output"),
    "stays poisoned": (StaysPoisoned, "inference (with|after one with) NaN: the output"),
    "forgets late steps": (ForgetsLateSteps, "inference in training, at step 12: the output"),
    "reuses outputs": (ReusesOutputs, "later results changed that of an earlier call"),
    "is wrong at squares": (wrong_where(lambda x: x.ndim == 3 and len(x) == x.shape[1] > 1), "of 8 sequences of 8"),
    "is wrong at multiples of 8": (wrong_where(lambda x: len(x) % 8 == 0), "inference of a batch of 64: the output"),
    "has other threads": (OfManyThreads, "has 77 threads in settings"),
    "has another dtype": (OfAnotherType, "has the dtype 'float16' in settings; allowed: float64"),
}


class TrainsWhileItInfers(Wrapped):
    def inference(self, inputs: Any, **keywords: Any) -> Any:
        for value in self.inner.buffers().values():
            value[...] *= 0.9
        return self.inner.inference(inputs, **keywords)


class OnlySingle(Wrapped):
    """A back-end without float64."""

    def __init__(self, network: Any) -> None:
        if any(spec.dtype == "float64" for spec in network.parameter_specs.values()):
            raise d5.Deep5Error("no float64")
        super().__init__(network)
        self.capabilities = frozenset({"early_gradients"})


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_back_end_is_caught(name: str) -> None:
    make, message = BROKEN[name]
    with pytest.raises(ConformanceError, match=message):
        check_executor(Back(make))


def test_the_wrapper_alone_is_right() -> None:
    """The checks above catch the defect, not the wrapper."""
    check_executor(Back(Wrapped))


def test_inference_that_changes_running_statistics_is_caught() -> None:
    with pytest.raises(ConformanceError, match="noisy in float64: inference in evaluation"):
        check_executor(Back(TrainsWhileItInfers))


def test_a_back_end_without_float64_is_checked_in_float32() -> None:
    check_executor(Back(OnlySingle))


def test_an_executor_that_lacks_a_method_is_named() -> None:
    def make(network: Any) -> Any:
        executor = Wrapped(network)
        del executor.export  # type: ignore[attr-defined]
        return executor

    with pytest.raises(
        ConformanceError, match="the executor of wrong does not have export; allowed: all of GraphExecutor"
    ):
        check_executor(Back(make))
