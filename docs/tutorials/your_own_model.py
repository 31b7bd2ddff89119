# %% [markdown]
# # Your own model
#
# Train an unmodified PyTorch module on a CSV table, use and export what it learned, run the same model on other
# frameworks, and record a training loop that you already have.
#
# Time: about half a minute on two cores. Install, in a clone of deep5: `pip install
# '.[pytorch,onnxruntime,data,report]' jupyterlab`.

# %%
import os
import shlex
import subprocess
import sys
from pathlib import Path

import altair as alt
import numpy as np
import onnxruntime
import pandas as pd
import torch
from IPython.display import SVG

import deep5 as d5

alt.renderers.enable("svg")
print("deep5", d5.__version__, "on PyTorch", torch.__version__)

# %% [markdown]
# ## 1. A table
#
# The table has 600 machines: a temperature, a vibration, a load, and whether the machine failed. The numbers are
# drawn, so that you know the rule that a model can learn: vibration matters only under high load.

# %%
draw = np.random.default_rng(0)
machines = pd.DataFrame(
    {
        "temperature": draw.normal(70, 12, 600).round(1),
        "vibration": draw.gamma(3, 0.8, 600).round(2),
        "load": draw.choice(["low", "medium", "high"], 600),
    }
)
risk = (machines["temperature"] - 70) / 12 + 0.5 * (machines["load"] == "medium")
risk += 1.1 * (machines["vibration"] - 2.4) * (machines["load"] == "high")
risk += 0.3 * draw.normal(size=600)
machines["fails"] = np.where(risk > 0.8, "yes", "no")
machines.to_csv("machines.csv", index=False)
machines.head(3)

# %% [markdown]
# Look at what deep5 makes of it before anything trains. `table` finds the type of each column, turns categories into
# inputs, splits off a stratified test part, and states every decision. `standardize=False` leaves the numbers as they
# are: the model scales its inputs itself, so that it can later be used on rows of the table.

# %%
table = {"path": "machines.csv", "target": "fails", "standardize": False}
data = d5.datasets.table(**table)
print("inputs:", data.description["inputs"])
data

# %% [markdown]
# ## 2. The module, as it is
#
# `Net` is plain PyTorch; nothing in it knows deep5. The dictionaries below it are a recipe: `FIXED` says what is
# trained, on what and with which loss, `MUTABLE` says what may change, and `METRICS` has the goals.

# %%
# %%writefile machine_net.py
import torch
from torch import nn

import deep5 as d5


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.scale = nn.BatchNorm1d(5)
        self.first = nn.Linear(5, width)
        self.second = nn.Linear(width, width)
        self.classes = nn.Linear(width, 2)

    def forward(self, x):
        x = torch.tanh(self.first(self.scale(x)))
        x = x + torch.tanh(self.second(x))
        return self.classes(x)


FIXED = {
    "model": Net,
    "loss": "cross_entropy",
    "dataset": "table",
    "dataset_kwargs": {"path": "machines.csv", "target": "fails", "standardize": False},
    "epochs": 20,
}
MUTABLE = {
    "batch_size": 32,
    "framework": "pytorch",
    "threads": 1,  # enough for a small network
    "optimizer": "adam",
    "optimizer_kwargs": {"lr": 0.01},
}
METRICS = [(d5.TestAccuracy(), ">= 85 %"), (d5.TrainingLoss(), None)]

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS)


# %% [markdown]
# `deep5 run` trains it and checks the goal. In a terminal you type the command; in this notebook a function calls it.


# %%
def deep5(arguments):
    """Run the command `deep5` with this notebook's Python, and print what it prints."""
    command = [sys.executable, "-m", "deep5", *shlex.split(arguments)]
    plain = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=plain)
    if done.returncode:
        raise RuntimeError(done.stderr)
    print(done.stdout.replace(f"{Path.cwd()}/", "").strip())


deep5("run machine_net.py")

# %% [markdown]
# The last line is the folder of the result, with every raw value, the versions, and the trained weights. The note
# says that PyTorch ran your module itself: nothing was exported.
#
# ## 3. Evaluate and predict
#
# `deep5 evaluate` loads the weights and evaluates them on the test part; it needs the recipe, because the network is
# your code. The confusion matrix shows which class is missed.

# %%
trained = max(Path("results").glob("machine_net-*"))  # the newest
deep5(f"evaluate {trained} --recipe machine_net.py")

# %% [markdown]
# `deep5 predict` takes arrays as the network takes them: the inputs in the order that the data set printed above. Two
# new machines with the same strong vibration, the first under high load and the second under low load:

# %%
# temperature, vibration, load=high, load=low, load=medium
new = np.array([[70, 4.5, 1, 0, 0], [70, 4.5, 0, 1, 0]], np.float32)
np.save("new.npy", new)
deep5(f"predict {trained} new.npy --recipe machine_net.py --top 2")

# %% [markdown]
# The model has learned the rule: the same vibration is a failure only under high load.
#
# ## 4. The same model on other frameworks
#
# Other frameworks run an export of the module, which `torch.onnx` makes when you name one. `pytorch:exported` is the
# export on PyTorch itself. Weights, batches and seeds stay the same, so the losses should, too.

# %%
from machine_net import FIXED, METRICS, MUTABLE

rows, folders = [], {}
for framework in ("pytorch", "pytorch:exported", "onnxruntime", "reference"):
    result = d5.run_recipe(FIXED, MUTABLE, METRICS, settings={"framework": framework}, quiet=True)
    folders[framework] = result.folder
    for row in result.samples()["training_loss"]:
        rows.append({"framework": framework, "step": row.step, "loss": row.value})
losses = pd.DataFrame(rows).pivot(index="step", columns="framework", values="loss")[list(folders)]
losses.tail(3).style.format(precision=7)

# %%
own, others = losses["pytorch"], losses.drop(columns="pytorch")
relative = others.sub(own, axis=0).div(own, axis=0).abs()
relative = relative.reset_index().melt("step", value_name="difference")
assert relative["difference"].max() < 1e-3
relative["drawn"] = relative["difference"].clip(lower=1e-9)  # a logarithmic axis has no zero

chart = alt.Chart(relative, width=480, height=220, title="Training losses against the module's own")
chart.mark_point(filled=True).encode(
    x=alt.X("step:Q", title="Step"),
    y=alt.Y("drawn:Q", title="Relative difference (1)")
    .scale(type="log")
    .axis(format=".0e", values=[10.0**power for power in range(-9, -2)]),
    color=alt.Color("framework:N", title="Framework"),
    shape=alt.Shape("framework:N", title="Framework"),
)

# %% [markdown]
# A difference of zero is drawn at 1e-9. The others are rounding: one operation in float32 has an error of up to 6e-8,
# and a step has many. An error in the export would be larger by orders of magnitude, from the first step. That is
# evidence and not a proof; `deep5 compare machine_net.py --frameworks pytorch,onnxruntime` proves it before it
# measures which is faster ([Comparing frameworks honestly](comparing_honestly.md)).
#
# ## 5. Export
#
# Every run of an export leaves `network.onnx`, with the trained weights. It needs neither deep5 nor PyTorch:

# %%
file = folders["pytorch:exported"] / "network.onnx"
session = onnxruntime.InferenceSession(file)
print("inputs:", [entry.name for entry in session.get_inputs()])
(logits,) = session.run(["logits"], {"input": new, "label": np.zeros(2, np.int64)})
shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
pd.DataFrame(shares, ["high load", "low load"], data.description["classes"]).round(4)

# %% [markdown]
# The file has the loss, too, so it has an input for labels; their values do not matter for the logits. The
# probabilities are those of section 3, up to one effect that the result warns of: ONNX defines the running variance
# of a batch normalization without PyTorch's correction for small samples.
#
# ## 6. What the layers cost
#
# `d5.networks.analyse` counts parameters, operations and memory of every layer, without running anything. `deep5 show
# network FILE` prints the same.

# %%
network = d5.Network.from_onnx(file)
analysis = d5.networks.analyse(network, batch=32)
layers = pd.DataFrame(
    {
        "layer": [f"{place} {layer.op_type}" for place, layer in enumerate(analysis.layers, 1)],
        "operator": [layer.op_type for layer in analysis.layers],
        "operations": [layer.arithmetic.flops for layer in analysis.layers],
    }
)
print(f"{analysis.parameters} parameters, {analysis.flops} operations for 32 rows")
chart = alt.Chart(layers, width=360, height=190, title="Operations of a forward pass with 32 rows")
chart.mark_bar().encode(
    x=alt.X("operations:Q", title="Floating-point operations (1)").axis(format="~s"),
    y=alt.Y("layer:N", title=None, sort=list(layers["layer"])),
    color=alt.Color("operator:N", title="Operator").legend(None),
)

# %% [markdown]
# The matrix products need nearly all of them. The picture of the graph shows the skip connection around the second
# layer. `-o` writes it as `pictures/network.svg`, with charts of the shares of parameters, operations and memory.

# %%
show = [sys.executable, "-m", "deep5", "show", "network", str(file), "--batch", "32"]
subprocess.run([*show, "-o", "pictures"], check=True, capture_output=True)
SVG("pictures/network.svg")

# %% [markdown]
# ## 7. A loop that you already have
#
# You need no recipe to get a result. `d5.record` measures a loop where it is: report epochs, steps, losses and
# accuracies, and it writes the same result folder, with goals and a verdict.

# %%
from machine_net import Net

torch.set_num_threads(1)
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), 0.01)
train, test = (split.batch(np.arange(len(split))) for split in (data.train, data.test))
x, y = torch.tensor(train["input"]), torch.tensor(train["label"])
x_test, y_test = torch.tensor(test["input"]), torch.tensor(test["label"])

goals = {"test_accuracy": ">= 85 %", "training_loss": None, "throughput": None}
with d5.record("my_loop", goals=goals, quiet=True) as run:
    for _ in range(20):
        with run.epoch():
            net.train()
            for rows in torch.randperm(len(x)).split(32):
                with run.step(batch_size=len(rows)):
                    loss = torch.nn.functional.cross_entropy(net(x[rows]), y[rows])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    run.log(loss=loss)
            net.eval()
            with run.evaluation(), torch.no_grad():
                run.log(accuracy=100 * (net(x_test).argmax(1) == y_test).float().mean())
run.result

# %% [markdown]
# The result says what a recorder cannot know, such as seeds and the order of batches. It is *open*: it shows what
# this loop did, and is comparable with another result only if you know that both do the same.
#
# ## What you learned
#
# - A recipe takes a PyTorch module and a CSV file as they are.
# - `deep5 evaluate` and `deep5 predict` work from the result folder.
# - Naming another framework exports the module; the losses show whether the export trains alike, and `deep5 compare`
#   proves it.
# - `network.onnx` runs anywhere; `d5.networks.analyse` and `deep5 show network` say what its layers cost.
# - `d5.record` turns an existing loop into a result.
#
# ## Next
#
# - [Your own model: all forms](../how_to/own_models.md), also Keras, JAX and ONNX files
# - [Your own data](../how_to/data.md): audio, text, images, TFRecord, WebDataset, Hugging Face
# - [Recording a loop](../how_to/recording.md), also of Lightning, Transformers and Keras
# - [Analysis, pictures, layer times](../how_to/analysis.md)
