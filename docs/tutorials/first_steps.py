# %% [markdown]
# # First steps
#
# You train a small network on real handwritten digits: first with deep5's parts one by one, then as a recipe whose
# result others can check and repeat.
#
# Time on two cores: about 15 seconds. Installation, in a clone of deep5:
#
# ```sh
# pip install '.[pytorch,onnxruntime,data,report]' jupyterlab
# ```

# %%
import textwrap

import altair as alt
import numpy as np
import pandas as pd

import deep5 as d5

alt.renderers.enable("svg")

# %% [markdown]
# ## The data
#
# The package contains 1797 digits of Alpaydin and Kaynak's *Optical recognition of handwritten digits* (UCI Machine
# Learning Repository, CC BY 4.0), so nothing is downloaded. A data set has two parts, `train` and `test`. Its
# description says how the samples were split and prepared; a run stores it.

# %%
data = d5.datasets.digits()
data

# %% [markdown]
# Look at some samples before you train with them. A batch is a dictionary of NumPy arrays, and you choose its samples
# by their indices.

# %%
import base64
import io

from PIL import Image


def pictures(images, titles):
    """A row of gray images, each below its title."""

    def address(image):
        file = io.BytesIO()
        Image.fromarray(np.uint8(255 * (1 - image[0]))).resize((84, 84), 0).save(file, "PNG")
        return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()

    rows = [
        {"picture": address(image), "title": f"{number}: {title}"}
        for number, (image, title) in enumerate(zip(images, titles, strict=True), 1)
    ]
    return (
        alt.Chart(pd.DataFrame(rows))
        .mark_image(width=84, height=84, align="left", baseline="top")
        .encode(alt.Url("picture:N"), x=alt.value(0), y=alt.value(0))
        .properties(width=84, height=84)
        .facet(alt.Facet("title:N", title=None, header=alt.Header(labelFontSize=12)), columns=6, spacing=12)
    )


batch = data.train.batch(np.arange(6))
pictures(batch["input"], [f"a {label}" for label in batch["label"]])


# %% [markdown]
# The samples are 8 × 8 pixels, enlarged to the 28 × 28 pixels that LeNet expects. Some are hard to read.
#
# ## The network and its executor
#
# A **network** is a graph of ONNX operators with its initial weights. It belongs to no framework. An **executor** runs
# it on one framework: here on PyTorch, with one thread, which is enough for a small network.

# %%
network = d5.networks.lenet()
pytorch = d5.framework("pytorch")
pytorch.set_threads(1)
executor = pytorch.executor(network, device="cpu", seed=0)
network

# %% [markdown]
# LeNet has two inputs, the images and their labels, and two outputs: the logits (one number for each class) and the
# loss. `inference` runs it forward and returns the framework's own arrays, here tensors of PyTorch.

# %%
outputs = executor.inference(batch)
{name: (type(value).__name__, tuple(value.shape)) for name, value in outputs.items()}

# %% [markdown]
# The network is not trained yet. If it gave all ten classes the same probability, the loss would be log 10 ≈ 2.303 nat.
# The loss of the six samples is near that:

# %%
float(outputs["loss"])

# %% [markdown]
# ## The gradients
#
# `inference_and_backprop` runs forward and backward. Afterwards `gradients()` has one array for each parameter. The
# norms say how strongly the loss of this batch depends on each of them.

# %%
executor.inference_and_backprop(data.train.batch(np.arange(64)), loss="loss")
norms = pd.DataFrame(
    [
        {"parameter": name, "layer": name.partition(".")[0], "norm": float(np.linalg.norm(d5.to_numpy(gradient)))}
        for name, gradient in executor.gradients().items()
    ]
)
alt.Chart(norms, title="Gradients of the untrained network, 64 digits").mark_bar(color="#0072b2").encode(
    alt.X("norm:Q", title="norm of the gradient (nat)", axis=alt.Axis(tickCount=7)),
    alt.Y("parameter:N", sort=None, title="parameter"),
).properties(width=420)

# %% [markdown]
# Look for zeros and for differences of many orders of magnitude: both mean that a part of the network does not learn.
# Here every parameter has a gradient, and all norms are within two orders of magnitude.
#
# ## Training
#
# A **trainer** needs an executor, an optimizer and a **sampler** that divides the data into batches. It only has the
# training loop. Everything else is an **event**, a class with hooks that the trainer calls. This one collects the loss
# of every step. It keeps the loss as PyTorch returns it, because reading a number at once may make a step wait for the
# device.


# %%
class LossCurve(d5.Event):
    """The loss of every step, and the accuracy after every epoch."""

    def __init__(self):
        self.losses, self.accuracies = [], []

    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        self.losses.append(outputs["loss"])

    def after_evaluation(self, trainer, epoch, scores):
        self.accuracies.append(scores["accuracy"])


train, test = d5.ShuffleSampler(data.train, 64, seed=0), d5.OrderedSampler(data.test, 256)
trainer = d5.Trainer(executor, d5.Adam(lr=0.003), train, test)
curve = LossCurve()
trainer.train(epochs=8, events=[curve])
[f"{accuracy:.1f} %" for accuracy in curve.accuracies]

# %% [markdown]
# The list has the test accuracy after each of eight epochs. The losses of the single steps show the rest:

# %%
LOG = alt.Scale(type="log", nice=False)
losses = pd.DataFrame({"step": np.arange(trainer.step), "loss": [float(loss) for loss in curve.losses]})
alt.Chart(losses, title="LeNet learns 1438 digits").mark_line(color="#0072b2", strokeWidth=1.5).encode(
    alt.X("step:Q", title="step (64 samples)"),
    alt.Y("loss:Q", title="training loss (nat)", scale=LOG, axis=alt.Axis(values=[0.01, 0.1, 1])),
).properties(width=480, height=240)

# %% [markdown]
# The curve is jagged because every step has another batch. It falls by about two orders of magnitude. Whether the
# network recognizes digits that it has not seen is another question, which the test samples answer.
#
# ## Predictions
#
# The predicted class is the one with the largest logit. Softmax turns logits into probabilities. These are test digits
# that the network gets wrong. "7 as 9" is a seven that it takes for a nine, and the percentage is the probability that
# it gives to its answer:

# %%
samples = data.test.batch(np.arange(len(data.test)))
logits = d5.to_numpy(executor.inference(samples)["logits"])
probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
probabilities /= probabilities.sum(axis=1, keepdims=True)
answers, labels = logits.argmax(axis=1), samples["label"]
wrong = np.flatnonzero(answers != labels)
print(f"{len(wrong)} of {len(labels)} test digits are wrong")
pictures(
    samples["input"][wrong[:6]],
    [f"{labels[n]} as {answers[n]}, {100 * probabilities[n].max():.0f} %" for n in wrong[:6]],
)

# %% [markdown]
# You have trained a network. Another person who wants to check this result needs the code above, and has to guess which
# of its numbers matter. A recipe settles that.
#
# ## The same as a recipe
#
# A recipe has three parts: `FIXED`, which makes two runs comparable, `MUTABLE`, which a run may change, and `METRICS`,
# the values to measure with their goals. A goal of `None` means that the value is only reported.

# %%
FIXED = {"model": "lenet", "dataset": "digits", "epochs": 8}
MUTABLE = {"batch_size": 64, "framework": "pytorch", "threads": 1, "seed": 0}
MUTABLE |= {"optimizer": "adam", "optimizer_kwargs": {"lr": 0.003}}
METRICS = [(d5.TestAccuracy(), ">= 95 %"), (d5.TrainingLoss(), None), (d5.WallClockTime(), "< 60 s")]

first = d5.run_recipe(FIXED, MUTABLE, METRICS, quiet=True)
first

# %% [markdown]
# The accuracy differs a little from the one above: a recipe derives the seeds of weights, batches and noise from its
# one seed. The table is the verdict: every goal was met, so the run is *accepted*. It is *closed* because it has the
# recipe's fixed part and goals. In a script, `d5.run_recipe(...) or exit(1)` ends with the exit status of the verdict.
#
# ## The result folder
#
# A run writes one folder. Nothing in it is pickled, and deep5 executes nothing from it.

# %%
pd.DataFrame(
    [{"file": path.name, "bytes": path.stat().st_size} for path in sorted(first.folder.iterdir())]
).style.hide()

# %% [markdown]
# `result.json` has the recipe, the machine, the versions, the seeds and the verdicts. `samples.csv` has every raw
# value, such as the loss of each step. `network.onnx` is the trained network, for any program that reads ONNX. In
# Python, `samples()` returns the raw values, and `document` is `result.json`:

# %%
steps = first.samples()["training_loss"]
print(len(steps), "losses; the first:", steps[0].value, steps[0].unit)
first.document["seeds"]

# %% [markdown]
# ## Change a mutable part
#
# `settings` replaces parts for one run, as `deep5 run --set` does. The batch size is mutable:

# %%
smaller = d5.run_recipe(FIXED, MUTABLE, METRICS, settings={"batch_size": 32}, quiet=True)
print(smaller.division, smaller.metric("test_accuracy"))

# %% [markdown]
# The result is still closed, so the two may be compared. The number of epochs is fixed, and deep5 refuses to change it:

# %%
try:
    d5.run_recipe(FIXED, MUTABLE, METRICS, settings={"epochs": 3}, quiet=True)
except d5.UsageError as error:
    print(textwrap.fill(str(error), 100))

# %% [markdown]
# ## Run it again
#
# The same recipe with the same seed on the same machine gives the same bits: the order of batches, the loss of every
# step and the trained weights. The result has hashes of all of them.

# %%
again = d5.run_recipe(FIXED, MUTABLE, METRICS, quiet=True)
kept = ("data", "initial_weights", "batch_order", "trained_weights")
assert all(first.document["provenance"][name] == again.document["provenance"][name] for name in kept)
pd.DataFrame(
    [
        {
            "hash of": name,
            "first run": first.document["provenance"][name][:12],
            "second run": again.document["provenance"][name][:12],
        }
        for name in kept
    ]
).style.hide()

# %% [markdown]
# Compare the two columns: they are equal in every row. The times are not, as every run is measured anew.
#
# ## Another framework
#
# The framework is a mutable part, too. ONNX Runtime and the NumPy reference get the same weights and the same batches:

# %%
runs = {"pytorch": first}
for name in ("onnxruntime", "reference"):
    runs[name] = d5.run_recipe(FIXED, MUTABLE, METRICS, settings={"framework": name}, quiet=True)

columns = {"set.framework": "framework", "set.batch_size": "batch size", "division": "division"}
columns |= {"metric.test_accuracy": "test accuracy (%)", "metric.training_loss": "training loss (nat)"}
d5.results.load("results")[list(columns)].rename(columns=columns).style.hide()

# %% [markdown]
# `d5.results.load` returns all results under a folder as a table. Compare the rows with a batch size of 64. The
# frameworks add numbers in different orders, so the last bits of their losses differ. How far apart are the losses of
# each step?

# %%
values = {name: np.array([sample.value for sample in run.samples()["training_loss"]]) for name, run in runs.items()}
apart = pd.DataFrame(
    [
        {"framework": name, "step": step, "difference": gap}
        for name in ("onnxruntime", "reference")
        for step, gap in enumerate(np.abs(values[name] / values["pytorch"] - 1))
        if gap > 0
    ]
)
alt.Chart(apart, title="Training loss compared with PyTorch's").mark_point(filled=True, size=25).encode(
    alt.X("step:Q", title="step (64 samples)"),
    alt.Y("difference:Q", title="relative difference", scale=LOG, axis=alt.Axis(format="~e", values=[1e-7, 1e-6])),
    alt.Color("framework:N", scale=alt.Scale(range=["#d55e00", "#009e73"])),
    alt.Shape("framework:N"),
).properties(width=440, height=240)

# %% [markdown]
# The differences begin at the rounding error of float32, which is about 1e-7, and grow slowly: training amplifies
# rounding errors. That is not yet a proof that the frameworks train alike, nor does it say which one is faster. `deep5
# compare` does both, and the tutorial on comparisons explains how.
#
# ## What you learned
#
# - A network belongs to no framework; an executor runs it on one of them.
# - The trainer is only the loop. Events observe it and change it.
# - A recipe says what is fixed, what may change and what is measured. A run of it has a verdict.
# - A result folder keeps every raw value, with the seeds, versions and hashes that a repetition needs.
# - The same run gives the same bits, and another framework is a change of one part.
#
# ## Next
#
# - [Operators](operators.md): write an operator, check it and time it.
# - [Customizing learning](customizing_learning.md): write an optimizer from a paper.
# - [Comparing honestly](comparing_honestly.md): which framework is faster?
# - [Your own model](your_own_model.md) and [your own data](../how_to/data.md).
# - [The result folder](../how_to/results.md): every file and field.
