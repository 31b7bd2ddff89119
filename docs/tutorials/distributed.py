# %% [markdown]
# # Distributed training
#
# Write a communication scheme, prove that several ranks with it train as one does, and measure what other schemes and
# compressed gradients change.
#
# Time: less than a minute on two cores. Install, in a clone of deep5: `pip install '.[pytorch,report]' jupyterlab`.

# %%
import os
import shlex
import subprocess
import sys
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
from safetensors.numpy import load_file

import deep5 as d5
from deep5.distributed.check_scheme import check_scheme
from deep5.distributed.communicators.threads import run_in_threads

alt.renderers.enable("svg")

# %% [markdown]
# ## 1. A scheme in one method
#
# In data-parallel training, every process (a **rank**) holds the whole network, computes the gradient of its part of
# the batch, and exchanges it with the other ranks. deep5 calls the way in which ranks exchange what they learned a
# **scheme**. It is a class with one method, `step`, around any optimizer.
#
# The scheme below is the `ConsistentDecentralized` of the Deep500 tutorial: there is no server, every rank adds up
# the gradients of all ranks with an all-reduce, divides the sum by the number of ranks, and makes the update by
# itself. `backprop` runs the network forward and backward on this rank's part, `gradients` returns the gradients by
# parameter, and `apply` calls the optimizer. `consistent = True` promises that all ranks hold the same parameters
# after every step.


# %%
class MeanOverRanks(d5.DistributedOptimizer):
    """Every rank steps by the mean of all ranks' gradients."""

    consistent = True

    def step(self, inputs, info):
        outputs = self.backprop(inputs, info)
        mean = {}
        for name, gradient in self.gradients().items():
            total = np.array(d5.to_numpy(gradient))
            self.communicator.all_reduce(total)  # in place: the sum over all ranks
            mean[name] = total / self.communicator.size
        self.apply(mean, info)
        return outputs


# %% [markdown]
# Before you train with a scheme, check it. `check_scheme` trains small networks on one to four ranks, which are
# threads of this process, and compares the parameters after each step with plain SGD on the samples of all ranks.

# %%
try:
    check_scheme(MeanOverRanks())
except d5.Deep5Error as error:
    print(error)

# %% [markdown]
# The check refuses the scheme. The message names the step: a batch of 3 samples on 2 ranks. One rank has two samples
# and the other has one, so the mean over the ranks is not the mean over the samples. With batches that divide evenly
# the error does not show, and it returns in the last batch of an epoch.
#
# The remedy is to weigh each gradient by the rank's share of the samples. The scheme goes into a file, because the
# processes of section 3 import it from there.

# %%
# %%writefile schemes.py
import deep5 as d5


class ConsistentDecentralized(d5.DistributedOptimizer):
    """Every rank steps by the mean gradient over the samples of all ranks."""

    consistent = True

    def step(self, inputs, info):
        outputs = self.backprop(inputs, info)
        share = info.batch_size / info.global_batch_size
        mean = {}
        for name, gradient in self.gradients().items():
            total = d5.to_numpy(gradient) * share
            self.communicator.all_reduce(total)
            mean[name] = total
        self.apply(mean, info)
        return outputs


# %%
import schemes

check_scheme(schemes.ConsistentDecentralized())
print("ConsistentDecentralized trains as SGD does on all samples, on 1 to 4 ranks")

# %% [markdown]
# ## 2. N ranks compute the same function as one
#
# The batch size is the total over all ranks, and `ShardedSampler` gives each rank its part of the same batches. So
# the number of ranks should change nothing but the order in which numbers are added. The next cell trains LeNet on
# the handwritten digits in float64, with one, two and three ranks, and keeps the parameters after every step.
#
# For contrast it also trains with `d5.LocalSGD`: ranks make their own steps and average their parameters after every
# fourth one.


# %%
class KeepWeights(d5.Event):
    """The parameters after each step, as one vector."""

    def __init__(self):
        self.steps = []

    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        weights = trainer.executor.state_dict()
        self.steps.append(np.concatenate([np.ravel(weights[name]) for name in sorted(weights)]))


def trajectory(ranks, scheme):
    """The parameters of the first rank after each of 23 steps."""

    def train(communicator):
        data = d5.datasets.digits()
        batches = d5.ShuffleSampler(data.train, 64, transforms=[d5.Cast("float64")])
        part = d5.ShardedSampler(batches, communicator.rank, communicator.size)
        executor = d5.framework("reference").executor(d5.networks.lenet(dtype="float64"))
        optimizer = scheme().wrap(d5.Momentum(0.05), communicator)
        weights = KeepWeights()
        trainer = d5.Trainer(executor, optimizer, part, communicator=communicator)
        trainer.train(epochs=1, events=[weights])
        return weights.steps

    return run_in_threads(ranks, train)[0]


d5.framework("reference").set_threads(1)  # the ranks share the cores
one = trajectory(1, schemes.ConsistentDecentralized)
labels = ["our scheme, 2 ranks", "our scheme, 3 ranks", "LocalSGD every 4 steps, 2 ranks"]
others = [
    trajectory(2, schemes.ConsistentDecentralized),
    trajectory(3, schemes.ConsistentDecentralized),
    trajectory(2, lambda: d5.LocalSGD(every=4)),
]

rows = []
for label, other in zip(labels, others, strict=True):
    for step, (weights, expected) in enumerate(zip(other, one, strict=True), 1):
        difference = np.linalg.norm(weights - expected) / np.linalg.norm(expected)
        rows.append({"scheme": label, "step": step, "difference": max(difference, 1e-18)})
differences = pd.DataFrame(rows)

y = alt.Y("difference:Q", title="Relative difference (1)").scale(type="log")
base = alt.Chart(differences, title="How far the parameters are from those of one rank").encode(
    x=alt.X("step:Q", title="Step"),
    y=y.axis(format=".0e", tickCount=6),
    color=alt.Color("scheme:N", title="Scheme").scale(domain=labels),
)
base = base.properties(width=480, height=240)
shape = alt.Shape("scheme:N", title="Scheme").scale(domain=labels)
base.mark_line() + base.mark_point(filled=True, size=40, opacity=1).encode(shape=shape)

# %% [markdown]
# The lower two curves stay near the precision of float64, about 1e-16: two and three ranks compute the function that
# one rank computes. The upper curve is another algorithm. It may train well, but a comparison of times has to say
# that it computes something else.

# %%
own = differences[differences["scheme"].str.startswith("our")]
assert own["difference"].max() < 1e-9
own.groupby("scheme")["difference"].max().to_frame("largest difference")

# %% [markdown]
# ## 3. Processes
#
# Threads share one Python interpreter, so they show whether a scheme is right, and not how fast it is. For speed,
# ranks are processes. A notebook cannot become several processes, but a command can: `--launcher torchrun` starts
# them, and PyTorch's process groups carry the messages. `--launcher mpiexec`, the default, uses MPI. Any recipe runs
# on any number of ranks, and a scheme from a file is named `FILE.py:CLASS`.


# %%
def deep5(arguments):
    """Run the command `deep5`, print its table, and return the folder of its result."""
    before = set(Path("results").glob("*"))
    command = [sys.executable, "-m", "deep5", *shlex.split(arguments)]
    plain = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=plain)
    if done.returncode:
        raise RuntimeError(done.stderr)
    print(done.stdout.replace(f"{Path.cwd()}/", "").strip())
    (folder,) = set(Path("results").glob("*")) - before
    return folder


run = "run digits_lenet --size smoke --ranks 2 --set scheme=schemes.py:ConsistentDecentralized"
by_processes = deep5(f"{run} --launcher torchrun")

# %% [markdown]
# The same command with `threads` gives a second result. Both folders contain the trained weights.

# %%
by_threads = deep5(f"{run} --launcher threads")
weights = load_file(by_processes / "weights.safetensors")
expected = load_file(by_threads / "weights.safetensors")
largest = max(np.abs(weights[name] - expected[name]).max() for name in expected)
print("\nlargest difference of a weight:", largest)

# %% [markdown]
# A sum of two numbers does not depend on their order, so two ranks give the same bits, whichever launcher started
# them.
#
# Do not compare the throughputs above. The run is a few steps long, and two processes and two threads share this
# machine with the notebook. Section 5 says what to run for times.
#
# ## 4. Asynchronous, and compressed
#
# Two other ways to spend less time on communication change what is computed:
#
# - **Asynchronous**: `"asynchronous"` is a parameter server that applies each gradient when it arrives. No rank waits
#   for another one, but a gradient may be older than the parameters that it changes. The metric `Staleness` counts by
#   how many updates. The server makes one update for each rank's part where a synchronous scheme makes one for the
#   whole batch, so it gets half the learning rate here.
# - **Compressed**: ranks send less than the gradient. `top_k` sends the largest elements with their positions, and
#   adds what a message left out to the next one (error feedback). `qsgd` rounds at random to a few levels. A
#   compression works with the schemes of deep5 that take a mean of gradients; for your own scheme set `compresses =
#   True`, and replace the loop by `self.mean(self.gradients(), info)`. That method also weighs by samples and sends
#   few large messages instead of one per parameter.
#
# A recipe states what is compared. Its variants differ in scheme and compression, and each runs with three seeds.

# %%
FIXED = {"model": "lenet", "dataset": "digits", "epochs": 3}
MUTABLE = {
    "batch_size": 64,  # of all ranks together
    "framework": "pytorch",
    "optimizer": "momentum",
    "optimizer_kwargs": {"lr": 0.05},
    "ranks": 2,
    "launcher": "threads",
    "threads": 1,
    "scheme": "all_reduce",
    "compression": None,
}
METRICS = [
    (d5.TestAccuracy(), None),
    (d5.CommunicationVolume(), None),
    (d5.WallClockTime(), None),
    (d5.CommunicationShare(), None),
    (d5.Staleness(), None),
]
VARIANTS = {
    "all-reduce": {},
    "our scheme": {"scheme": schemes.ConsistentDecentralized},
    "asynchronous": {"scheme": "asynchronous", "optimizer_kwargs": {"lr": 0.025}},
    "top-k, 10 %": {"compression": "top_k", "compression_kwargs": {"ratio": 0.1}},
    "QSGD, 7 levels": {"compression": "qsgd", "compression_kwargs": {"levels": 7}},
    "top-k, 1 %": {"compression": "top_k", "compression_kwargs": {"ratio": 0.01}},
    "top-k, 0.1 %": {"compression": "top_k", "compression_kwargs": {"ratio": 0.001}},
}

rows = []
for variant, settings in VARIANTS.items():
    for seed in range(3):
        changed = {**settings, "seed": seed}
        result = d5.run_recipe(FIXED, MUTABLE, METRICS, settings=changed, quiet=True)
        rows.append(
            {
                "variant": variant,
                "accuracy": result.metric("test_accuracy"),
                "volume": result.metric("communication_volume") / 2**20,
                "time": result.metric("wall_clock_time"),
                "communication": result.metric("communication_share"),
                "staleness": result.metric("staleness"),
            }
        )
runs = pd.DataFrame(rows)

table = runs.groupby("variant", sort=False).agg(
    **{
        "accuracy, median (%)": ("accuracy", "median"),
        "lowest": ("accuracy", "min"),
        "highest": ("accuracy", "max"),
        "sent (MiB)": ("volume", "median"),
        "time (s)": ("time", "median"),
        "waiting (% of the time)": ("communication", "median"),
        "staleness (updates)": ("staleness", "median"),
    }
)
table.style.format(precision=1, na_rep="").format("{:.3g}", subset="sent (MiB)")

# %%
KINDS = {"all-reduce": "exact", "our scheme": "exact", "asynchronous": "asynchronous"}
runs["kind"] = runs["variant"].map(lambda variant: KINDS.get(variant, "compressed"))

variant = alt.Y("variant:N", sort=list(VARIANTS), title=None)
color = alt.Color("kind:N", title="Gradients").scale(domain=["exact", "asynchronous", "compressed"])
base = alt.Chart(runs).mark_point(filled=True, size=60).properties(width=210, height=190)
accuracy = alt.X("accuracy:Q", title="Test accuracy (%)").scale(zero=False).axis(tickCount=5)
sent = alt.X("volume:Q", title="Sent by both ranks (MiB)").scale(type="log")
left = base.encode(x=accuracy, y=variant, color=color)
right = base.encode(x=sent.axis(values=[0.1, 1, 10, 100]), y=variant.axis(labels=False), color=color)
alt.hconcat(left, right, title="Accuracy after three epochs, and bytes; one point per seed")

# %% [markdown]
# Look at three things:
#
# - **Bytes** are counted and not estimated. They follow from the number of parameters, the compression and the steps,
#   and are the same on any machine; only for the asynchronous scheme do they depend on the order in which ranks
#   arrive.
# - **Accuracy** has a range over the seeds. Variants whose ranges overlap are not shown to differ. All-reduce and our
#   scheme are the same function up to rounding in float32. After three epochs the strongest compressions may still be
#   catching up: the next question is how many steps each needs, which a [study](../how_to/distributed.md#studies)
#   answers.
# - **Time** is what this machine needed, and no reason to choose a scheme. The next section says why.
#
# ## 5. What two cores show, and what they cannot
#
# | question | answered by threads | by processes on two cores | by several machines |
# |---|---|---|---|
# | Is the scheme right? | yes: `check_scheme`, and N ranks against one | yes | yes |
# | How many bytes does it send? | yes, exactly | yes | yes |
# | How many steps does a training need? | yes | yes | yes |
# | How stale are gradients? | for these threads only | for these cores only | yes |
# | How fast is it? | no: one interpreter | two ranks at most, one thread each | yes |
# | Does compression save time? | no: memory is fast | no: memory is fast | yes |
#
# To time processes, take a run of full size, one thread per rank, and several seeds:
#
# ```sh
# deep5 study digits_lenet --vary scheme=all_reduce,local_sgd --ranks 2 --launcher torchrun --threads 1 --seeds 6
# ```
#
# ## What you learned
#
# - A scheme is one method, `step`. `check_scheme` compares it with SGD on all samples, and finds what even batches
#   hide.
# - N ranks compute the same function as one if the scheme takes the mean over all samples at every step.
# - Asynchronous and compressed training compute another function: report accuracy and bytes, over several seeds.
# - Times of ranks that share an interpreter, or cores, say nothing about a scheme.
#
# ## Next
#
# - [Distributed training, all options](../how_to/distributed.md): nine schemes, eight compressions, your own
#   compression, lost ranks, and resuming.
# - [The schemes and their equations](../explanation/schemes.md)
# - [Comparing frameworks honestly](comparing_honestly.md)
