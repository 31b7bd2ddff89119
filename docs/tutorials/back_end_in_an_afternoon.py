# %% [markdown]
# # A back-end in an afternoon
#
# Bring your own engine to deep5 in two methods, let the conformance suite check it, see planted bugs caught, train on
# it, and give it a name.
#
# Time: about half a minute on two cores. Install, in a clone of deep5: `pip install '.[report]' jupyterlab`.

# %%
import json
import os
import shlex
import subprocess
import sys

import altair as alt
import numpy as np
import pandas as pd

import deep5 as d5

alt.renderers.enable("svg")
print("deep5", d5.__version__, "on NumPy", np.__version__)

# %% [markdown]
# ## 1. An engine in two methods
#
# A **back-end** makes networks and operators run on one library. If the library runs ONNX models forward, two methods
# are enough: `version`, and `compile`, which takes a serialized model and returns a function from arrays by input
# name to a list of outputs. deep5 derives the rest: the backward pass is part of the model that `compile` gets, the
# update rules are its own, and operators that the engine lacks are expanded into others.
#
# The engine here is the evaluator that the `onnx` package has for checking definitions. It is slow, written in NumPy,
# and was never meant to train. Replace the two lines of `compile` by your engine.

# %%
# %%writefile evaluator.py
import onnx
from onnx.reference import ReferenceEvaluator

import deep5 as d5


class Evaluator(d5.ONNXEngine):
    """The evaluator of the onnx package."""

    name = "evaluator"
    requires = ("onnx",)

    def version(self):
        return onnx.__version__

    def compile(self, model, *, threads):
        loaded = ReferenceEvaluator(onnx.load_model_from_string(model))
        return lambda inputs: loaded.run(None, inputs)


# %% [markdown]
# ## 2. The conformance suite
#
# The suite compares outputs and gradients with deep5's NumPy reference: at many batch sizes, at zeros, ties, NaN and
# infinities, in repeated calls and after errors, in whole training steps and resumed ones. It runs in another
# process, so that a crash ends one group of checks and not the report.


# %%
def deep5(arguments):
    """Run the command `deep5` with this notebook's Python; what it prints."""
    command = [sys.executable, "-m", "deep5", *shlex.split(arguments)]
    plain = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=plain)
    if done.returncode > 1:  # 1: a check failed
        raise RuntimeError(done.stderr)
    return done.stdout


print(deep5("check framework evaluator.py:Evaluator"))

# %% [markdown]
# It conforms: the engine trains, too, although it only runs models forward.
#
# ## 3. Planted bugs
#
# A suite that always passes proves nothing. Three engines with bugs as they happen:
#
# - `Forgetful` reuses its last outputs if the network's input is the same array content as before. A cache like this
#   looks right in a test of inference, and ignores that the parameters changed.
# - `Tidy` replaces NaN and infinities by numbers, as a "safe" mode may do. Then no training that diverges is noticed.
# - `Hasty` computes with parameters and inputs in 16 bits.

# %%
# %%writefile broken.py
import evaluator
import numpy as np


class Forgetful(evaluator.Evaluator):
    """Returns the last outputs if the network's input is the same."""

    name = "forgetful"

    def compile(self, model, *, threads):
        run, last = super().compile(model, threads=threads), {}

        def cached(inputs):
            key = next(iter(inputs.values())).tobytes()
            if key not in last:
                last.clear()
                last[key] = run(inputs)
            return last[key]

        return cached


class Tidy(evaluator.Evaluator):
    """Hides values that are not finite."""

    name = "tidy"

    def compile(self, model, *, threads):
        run = super().compile(model, threads=threads)

        def finite(x):
            return np.nan_to_num(x) if np.asarray(x).dtype.kind == "f" else x

        return lambda inputs: [finite(x) for x in run(inputs)]


class Hasty(evaluator.Evaluator):
    """Computes with 16 bits."""

    name = "hasty"

    def compile(self, model, *, threads):
        run = super().compile(model, threads=threads)

        def short(x):
            return x.astype(np.float16).astype(x.dtype) if x.dtype == np.float32 else x

        return lambda inputs: run({name: short(x) for name, x in inputs.items()})


# %%
engines = ["broken.py:Forgetful", "broken.py:Tidy", "broken.py:Hasty"]
checks = []
for engine in engines:
    report = json.loads(deep5(f"check framework {engine} --json"))
    checks += [{"engine": engine.split(":")[1], **check} for check in report["checks"]]
checks = pd.DataFrame(checks)
checks.groupby("engine", sort=False)["verdict"].value_counts().unstack(fill_value=0)

# %%
names, words = [engine.split(":")[1] for engine in engines], ["passed", "FAILED"]
chart = alt.Chart(checks, width=alt.Step(70), height=alt.Step(17), title="The conformance suite")
chart.mark_point(filled=True, size=90, opacity=1).encode(
    x=alt.X("engine:N", title="Engine", sort=names).axis(labelAngle=0),
    y=alt.Y("check:N", title=None, sort=list(checks["check"].unique())).axis(labelLimit=330),
    color=alt.Color("verdict:N", title="Verdict").scale(domain=words),
    shape=alt.Shape("verdict:N", title="Verdict").scale(domain=words),
)

# %% [markdown]
# Each bug is caught, and the pattern of failed checks points at it. The note of a failed check has the numbers, and
# the limit:

# %%
failed = checks[checks["verdict"] == "FAILED"].groupby("engine", sort=False).first()
for engine, note in failed["note"].items():
    print(f"{engine}: {note[:300]}\n")
assert set(failed.index) == {"Forgetful", "Tidy", "Hasty"}

# %% [markdown]
# In your own tests, `d5.check_executor(Evaluator())` runs the same suite and raises at the first failure.
#
# ## 4. Train on it
#
# A recipe takes the class under `framework`. The network is built for this purpose, an affine layer on the digits,
# because the evaluator is slow. The second run is on deep5's reference, with the same weights and batches.

# %%
import evaluator


def affine(*, dtype="float32", seed=0):
    """Softmax regression on images of 28 x 28 pixels."""
    build = d5.NetworkBuilder("affine", dtype=dtype, seed=seed)
    x, label = build.input("input", ("N", 1, 28, 28)), build.input("label", ("N",), "int64")
    weight = build.parameter("weight", (10, 784))
    bias = build.parameter("bias", (10,), d5.networks.zeros)
    logits = build.op("Gemm", build.op("Flatten", x), weight, bias, transB=1)
    loss = build.op("SoftmaxCrossEntropyLoss", logits, label)
    return build.network({"logits": logits, "loss": loss})


FIXED = {"model": affine, "dataset": "digits", "epochs": 5}
ADAM = {"batch_size": 64, "optimizer": "adam", "optimizer_kwargs": {"lr": 0.003}}
MUTABLE = {"framework": evaluator.Evaluator, **ADAM}
METRICS = [(d5.TestAccuracy(), ">= 85 %"), (d5.TrainingLoss(), None)]

result = d5.run_recipe(FIXED, MUTABLE, METRICS, quiet=True)
reference = d5.run_recipe(FIXED, MUTABLE, METRICS, settings={"framework": "reference"}, quiet=True)
print("test accuracy of the reference:", round(reference.metric("test_accuracy"), 2), "%")
result

# %% [markdown]
# Equal accuracies are no proof. `prove_same_trajectory` trains on both, and compares losses, updates and gradients
# along the way; `deep5 compare` does the same before it measures.


# %%
def batches(network):
    draw = np.random.default_rng(0)
    for step in range(20):
        x = draw.standard_normal((8, 1, 28, 28)).astype(network.inputs["input"].dtype)
        yield d5.StepInfo(step=step, batch_size=8), {"input": x, "label": draw.integers(0, 10, 8)}


proof = d5.prove_same_trajectory(
    lambda dtype: affine(dtype=dtype), d5.Adam, batches, [evaluator.Evaluator(), "reference"]
)
assert proof.passed
table = pd.DataFrame(proof.comparisons)
table = table[(table["first"] == "evaluator") | (table["second"] == "evaluator")]
digits = {"difference": "{:.1e}", "tolerance": "{:.1e}", "ulps": "{:.0f}"}
table.style.format(digits).hide(axis="index")

# %% [markdown]
# ## 5. Or an executor of two methods
#
# An engine may compute gradients itself, or run one network only. Then write an **executor**: `inference` returns the
# outputs by name, and `inference_and_backprop` also the gradient by each parameter, as `grad:NAME`. This is the
# interface of the Deep500 tutorial. The one below is hand-written NumPy for the network above.


# %%
class HandWritten(d5.GraphExecutor):
    """Softmax regression in NumPy: only for `affine`."""

    def __init__(self, model, device=None, events=()):
        super().__init__(model, events)

    def inference(self, inputs):
        return self.passes(inputs)[0]

    def inference_and_backprop(self, inputs, loss="loss"):
        outputs, by_logits = self.passes(inputs)
        x = inputs["input"].reshape(len(by_logits), -1)
        return {**outputs, "grad:weight": by_logits.T @ x, "grad:bias": by_logits.sum(axis=0)}

    def passes(self, inputs):
        """The outputs, and the derivative of the loss by the logits."""
        weights, label = self.parameters(), inputs["label"]
        logits = inputs["input"].reshape(len(label), -1) @ weights["weight"].T + weights["bias"]
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_share = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        rows = np.arange(len(label))
        by_logits = np.exp(log_share)
        by_logits[rows, label] -= 1
        return {"logits": logits, "loss": -log_share[rows, label].mean()}, by_logits / len(label)


# %% [markdown]
# First compare one batch with the reference, gradient by gradient:


# %%
def gradients(executor):
    """The gradients of one batch, by parameter, as NumPy arrays."""
    executor.inference_and_backprop(d5.datasets.digits().train.batch(np.arange(32)))
    return {name: np.array(d5.to_numpy(value)) for name, value in executor.gradients().items()}


own = gradients(HandWritten(affine()))
expected = gradients(d5.framework("reference").executor(affine()))
table = pd.DataFrame(
    {
        "largest element": {name: np.abs(own[name]).max() for name in own},
        "largest difference": {name: np.abs(own[name] - expected[name]).max() for name in own},
    }
)
assert table["largest difference"].max() < 1e-6
table

# %% [markdown]
# The difference is zero where both do the same operations in the same order, and otherwise rounding. Now train with
# it. deep5 derives whole training steps, accumulation, copies, and export from the two methods.

# %%
hand_written = d5.run_recipe(FIXED, {"executor": HandWritten, **ADAM}, METRICS, quiet=True)
pd.Series(
    {
        "evaluator": result.metric("training_loss"),
        "reference": reference.metric("training_loss"),
        "hand-written": hand_written.metric("training_loss"),
    }
).to_frame("training loss (nat)")

# %% [markdown]
# ## 6. A name
#
# `d5.register` gives the engine a name in this process, for recipes and `d5.framework`:

# %%
d5.register("frameworks", "evaluator", evaluator.Evaluator)
executor = d5.framework("evaluator").executor(affine())
print(executor.settings())

# %% [markdown]
# Other processes do not know it. There, `FILE.py:CLASS` names the engine in every command, for example `deep5 compare
# digits_lenet --frameworks evaluator.py:Evaluator,reference`. To share an engine, make it a plug-in: `deep5 new
# plugin acme_parts` writes a package with a component of every kind, each with a test, and after `pip install` all
# processes know the names.
#
# ## What you learned
#
# - `d5.ONNXEngine` needs `version` and `compile`; deep5 derives gradients, training and everything else.
# - `deep5 check framework FILE.py:CLASS` is the conformance suite. It found a stale cache, hidden NaN and a lower
#   precision.
# - A recipe takes the class as it is, and `prove_same_trajectory` shows that the engine trains as the reference does.
# - `d5.GraphExecutor` needs `inference` and `inference_and_backprop`.
# - `d5.register` and plug-ins give names.
#
# ## Next
#
# - [Your own back-end: the three ways](../how_to/backends.md)
# - [Comparing frameworks honestly](comparing_honestly.md), with your engine as a candidate
# - [Your own operators](operators.md)
# - [Networks, and the proof that two back-ends train alike](../how_to/networks.md)
