"""`Suite`: the checks of an executor's single methods on one network, against the reference and its own differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from deep5.core import plugins
from deep5.core.errors import Deep5Error, ShapeError, Unsupported, UsageError
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.core.seeds import generator
from deep5.core.tensors import Arrays, to_numpy
from deep5.networks.checks.stepping import NOT_FINITE, change_numbers, step_options
from deep5.networks.judge import Judge
from deep5.networks.network import Network

__all__ = ["Suite"]

# Relative to the norm of the expected value. The networks are smooth, so that rounding errors do not grow in 20 steps.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
# Step of the central difference, and its allowed error: truncation, h², and the loss's rounding error divided by h.
_DIFFERENCE = {"float64": (1e-5, 1e-6), "float32": (1e-2, 1e-2)}
_STEPS = 20
# Sums of gradients: whether by chosen names, and the loss scales of the terms, also those that are no powers of 2. The
# last two call what came before, whose gradients may have been kept.
_OPTIONS = (
    (False, (1.0, 1.0, 1.0)),
    (False, (8.0, 0.3, 1.0)),
    (False, (1.0,)),
    (True, (3.0, 0.3)),
    (True, (0.3,)),
    (False, (1.0,)),
)


class Suite:
    """A back-end's executor of one network, the reference's, and the checks of their calls.

    Args:
        framework: The back-end.
        network: The network.
        dtype: Its element type, which determines the tolerance.
    """

    def __init__(self, framework: Framework, network: Network, dtype: str) -> None:
        self.framework, self.network, self.dtype = framework, network, dtype
        self.judge = Judge(f"{framework.name} on {network.model.graph.name} in {dtype}", _TOLERANCE[dtype])
        self.executor: GraphExecutor = framework.executor(network)
        self.reference: GraphExecutor = plugins.framework("reference").executor(network)
        self.feed, self.other = self.batch(0), self.batch(1)
        self.names = list(network.parameter_specs)

    def batch(self, step: int, size: int = 4) -> dict[str, np.ndarray]:
        """The inputs of a step, drawn by its number."""
        draw = generator(0, "check_executor", step)
        shape = [int(extent) for extent in self.network.inputs["input"].shape[1:]]
        classes = int(self.network.outputs["logits"].shape[-1])
        return {
            "input": draw.standard_normal((size, *shape)).astype(self.dtype),
            "label": draw.integers(0, classes, size).astype(np.int64),
        }

    def check_settings(self) -> None:
        """`settings` has the network's dtype, and the threads that were requested wherever they can be set."""
        found = self.executor.settings()
        self.judge.require({"threads", "dtype"} <= found.keys(), f"has the settings {sorted(found)}", "threads, dtype")
        self.judge.require(found["dtype"] == self.dtype, f"has the dtype {found['dtype']!r} in settings", self.dtype)
        threads = found["threads"]
        # A process whose threads are fixed refuses other numbers, but not its own. Last, the number of before.
        for number in (2, 1, threads):
            try:
                self.framework.set_threads(number)
            except UsageError as error:
                self.judge.require(number != threads, f"has {threads!r} threads in settings, but refuses them", error)
                continue
            read = self.framework.executor(self.network).settings()["threads"]
            self.judge.require(read == number, f"has {read!r} threads in settings after set_threads({number})", number)

    def check_inference(self) -> None:
        """Outputs equal the reference's, for any strides of the inputs, and nothing changes."""
        before = self.executor.state_dict()
        want = _numpy(self.reference.inference(self.feed))
        wide = {name: np.repeat(value, 2, axis=0)[::2] for name, value in self.feed.items()}
        turned = {name: np.asfortranarray(value) for name, value in self.feed.items()}
        frozen = {name: value.copy() for name, value in self.feed.items()}
        for value in frozen.values():
            value.flags.writeable = False
        for what, feed in {"": self.feed, "strided ": wide, "Fortran ": turned, "read-only ": frozen}.items():
            got = _numpy(self.executor.inference(feed))
            self.judge.require(list(got) == list(want), f"returned the outputs {list(got)}", list(want))
            for name, value in want.items():
                self.judge.close(got[name], value, f"inference on {what}inputs: the output {name!r}")
        self.judge.identical(self.executor.state_dict(), before, "inference(training=False) changed")

    def check_gradients(self) -> None:
        """Gradients equal the reference's; before the first backward pass there are none."""
        fresh = self.framework.executor(self.network)
        self.judge.refuses(Unsupported, fresh.gradients, "gradients() before inference_and_backprop")
        outputs = _numpy(self.executor.inference_and_backprop(self.feed))
        want = _numpy(self.reference.inference_and_backprop(self.feed))
        self.judge.close(outputs["loss"], want["loss"], "inference_and_backprop: the loss")
        self.gradients_are(self.expected(self.feed), "inference_and_backprop")

    def check_differences(self) -> None:
        """Gradients equal the derivative of the executor's own loss along a half gradient, half random direction."""
        step, tolerance = _DIFFERENCE[self.dtype]
        start = self.executor.state_dict()
        draw = generator(0, "check_executor", "direction")
        self.executor.inference_and_backprop(self.feed)
        gradients = _numpy(self.executor.gradients())
        noise = {name: draw.standard_normal(start[name].shape) for name in self.names}
        scale, spread = _norm(gradients), _norm(noise)
        direction = {name: gradients[name] / scale + noise[name] / spread for name in self.names}
        slope = sum(float(np.sum(gradients[name] * direction[name])) for name in self.names)
        losses = []
        for sign in (1, -1):
            moved = {name: (start[name] + sign * step * direction[name]).astype(self.dtype) for name in self.names}
            self.executor.load_state_dict({**start, **moved})
            losses.append(float(to_numpy(self.executor.inference(self.feed)["loss"])))
        self.executor.load_state_dict(start)
        difference = (losses[0] - losses[1]) / (2 * step)
        self.judge.require(
            abs(slope - difference) <= tolerance * scale,
            f"has a gradient of slope {slope:.9g} in a direction",
            f"{difference:.9g}, the central difference of its loss, within {tolerance * scale:.2g}",
        )

    def check_options(self, cases: Sequence[tuple[bool, Sequence[float]]] = _OPTIONS) -> None:
        """`accumulate`, `loss_scale`, `wrt` and `on_gradient` work as documented, also together.

        Args:
            cases: Sums of gradients: whether by `wrt`, and the loss scale of each term.
        """
        feeds, chosen = (self.feed, self.other, self.batch(2)), ["input", self.names[-1]]
        for (by_name, scales), watched in product(cases, (False, True)):
            wrt = chosen if by_name else None
            total: dict[str, np.ndarray] = {}
            for number, scale in enumerate(scales):
                for name, value in self.expected(feeds[number], wrt).items():
                    total[name] = total.get(name, 0) + scale * value
                options: dict[str, Any] = {"accumulate": True} if number else {}
                options |= ({} if scale == 1 else {"loss_scale": scale}) | ({"wrt": wrt} if wrt else {})
                self.check_call(feeds[number], total, options, watched)

    def check_call(
        self, feed: dict[str, np.ndarray], want: Mapping[str, np.ndarray], options: dict[str, Any], watched: bool
    ) -> None:
        """Gradients of a call with these options; `watched` by `on_gradient`, which receives each once."""
        texts = (f"{key}={value:g}" if key == "loss_scale" else f"{key}={value}" for key, value in options.items())
        what = ", ".join(texts) or "no options"
        kept, calls = {name: value.copy() for name, value in feed.items()}, list[tuple[str, np.ndarray]]()
        if watched:
            options = {**options, "on_gradient": lambda name, value: calls.append((name, to_numpy(value).copy()))}
        self.executor.inference_and_backprop(feed, **options)
        self.judge.identical(feed, kept, "inference_and_backprop changed")
        self.gradients_are(want, what)
        if watched:
            names = sorted(name for name, _ in calls)
            self.judge.require(names == sorted(want), f"{what}: called on_gradient for {names}", sorted(want))
            found = _numpy(self.executor.gradients())
            self.judge.identical(dict(calls), found, f"{what}: on_gradient got a value that is not of gradients():")

    def check_sums(self) -> None:
        """What `accumulate` adds to: a whole step consumes its gradients, halves do not; other batches are rejected."""
        executor, info = self.executor, StepInfo(batch_size=4)
        step = executor.train_step(plugins.load("optimizers", "sgd")(lr=0.0))  # does not change the parameters
        first, second = self.expected(self.feed), self.expected(self.other)
        executor.inference_and_backprop(self.feed)
        step(self.feed, info)
        executor.inference_and_backprop(self.other, accumulate=True)
        self.gradients_are(second, "accumulate=True after a training step, which uses its gradients up")
        step.backprop(self.feed, info)
        step.apply(executor.gradients(), info)
        executor.inference_and_backprop(self.other, accumulate=True)
        both = {name: first[name] + second[name] for name in first}
        self.gradients_are(both, "accumulate=True after backprop and apply, which leave the gradients")
        larger = partial(executor.inference_and_backprop, self.batch(0, 5), wrt=["input"], accumulate=True)
        executor.inference_and_backprop(self.feed, wrt=["input"])
        self.judge.refuses(ShapeError, larger, "accumulate=True over batches of 4 and 5 with wrt=['input']")

    def check_copies(self) -> None:
        """`read`, `write`, `state_dict` and `export` preserve every bit, and copy."""
        executor, same = self.framework.executor(self.network), self.judge.identical
        start, initial = executor.state_dict(), {name: self.network.initial(name) for name in self.names}
        same(start, initial, "starts from other values than the network's:")
        same(executor.parameters(), initial, "parameters() has other values than state_dict():")
        packed = np.concatenate([initial[name].reshape(-1) for name in self.names])
        out = np.empty_like(packed)
        executor.read(self.names, out)
        same({"packed": out}, {"packed": packed}, "read gave other bits:")
        executor.write(self.names, packed * 2)
        doubled = {name: value * 2 for name, value in initial.items()}
        same(executor.state_dict(), doubled, "write gave other bits, or state_dict:")
        same(start, initial, "write changed an earlier state_dict:")
        exported = executor.export()
        same({name: exported.initial(name) for name in initial}, doubled, "export gave other bits:")
        loss = executor.inference(self.feed)["loss"]
        self.judge.close(
            self.framework.executor(exported).inference(self.feed)["loss"], loss, "the exported network: the loss"
        )
        executor.load_state_dict(start)
        same(executor.state_dict(), initial, "load_state_dict gave other bits:")
        del start[self.names[0]]
        self.judge.refuses(Deep5Error, partial(executor.load_state_dict, start), "a state_dict without a parameter")

    def check_refusals(self) -> None:
        """Wrong inputs are rejected before anything runs."""
        x, label = self.feed["input"], self.feed["label"]
        other = "float32" if self.dtype == "float64" else "float64"
        wrong = {
            "without 'label'": {"input": x},
            "with an unknown input": {**self.feed, "inptu": x},
            "with a misspelled input": {"inptu": x, "label": label},
            "with a dimension too small": {"input": x[..., :-1], "label": label},
            "with a dimension missing": {"input": x[0], "label": label},
            f"of dtype {other}": {"input": x.astype(other), "label": label},
            "with labels of a floating dtype": {"input": x, "label": label.astype(self.dtype)},
        }
        for what, feed in wrong.items():
            self.judge.refuses(ShapeError, partial(self.executor.inference, feed), f"inference {what}")
            self.judge.refuses(ShapeError, partial(self.executor.inference_and_backprop, feed), f"backprop {what}")
        # Evaluation may accept it: it leaves no state. The mean over nothing is NaN, which training would store.
        empty = {name: value[:0] for name, value in self.feed.items()}
        for run in (self.executor.inference_and_backprop, partial(self.executor.inference, training=True)):
            self.judge.refuses(ShapeError, partial(run, empty), "training on an empty batch")

    def check_training(self, rules: Sequence[str]) -> None:
        """Steps equal the reference's: with changing numbers, a pipeline, groups, modified gradients, and a NaN."""
        for name in rules:
            losses, ends = [], []
            for framework in (self.framework, plugins.framework("reference")):
                executor, rule = framework.executor(self.network), plugins.load("optimizers", name)(lr=0.02)
                options = step_options(name)
                step = executor.train_step(rule, **options)
                values = []
                for index in range(_STEPS):
                    change_numbers(rule, options, late=index >= _STEPS // 2)
                    batch, info = self.batch(index), StepInfo(step=index, epoch=index // 5, batch_size=4)
                    if index == NOT_FINITE and step.loss_scale > 1000:  # a dynamic one: the step is skipped
                        batch["input"][0] = np.nan
                    values.append(float(to_numpy(step(batch, info)["loss"])))
                executor.synchronize()
                self.judge.require(step.traces == 1, f"traced {name} {step.traces} times while lr changed", 1)
                exported = executor.export()
                losses.append(np.array(values))
                numbers = {"loss_scale": np.array(step.loss_scale), "skipped_steps": np.array(step.skipped_steps)}
                state = {f"{key} exported": exported.initial(key) for key in self.names} | executor.state_dict()
                ends.append(state | numbers)
            self.judge.close(losses[0], losses[1], f"the losses of {_STEPS} steps of {name}")
            for key, value in ends[1].items():
                self.judge.close(ends[0][key], value, f"after {_STEPS} steps of {name} {key!r}")

    def expected(self, feed: Arrays, wrt: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """The reference's gradients."""
        self.reference.inference_and_backprop(feed, wrt=wrt)
        return _numpy(self.reference.gradients())

    def gradients_are(self, want: Mapping[str, np.ndarray], what: str) -> None:
        """Require these gradients of the last call."""
        got = _numpy(self.executor.gradients())
        self.judge.require(got.keys() == want.keys(), f"{what}: gives gradients by {sorted(got)}", sorted(want))
        for name, value in want.items():
            self.judge.close(got[name], value, f"{what}: the gradient by {name!r}")


def _norm(values: Arrays) -> float:
    return float(np.sqrt(sum(np.sum(np.square(value)) for value in values.values())))


def _numpy(values: Arrays) -> dict[str, np.ndarray]:
    return {name: np.array(to_numpy(value)) for name, value in values.items()}
