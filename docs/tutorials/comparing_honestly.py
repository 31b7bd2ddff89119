# %% [markdown]
# # Comparing frameworks honestly
#
# Compare three back-ends so that the answer survives a review: prove that they compute the same, measure the noise of
# the machine, read the verdict, and know what the result does not say.
#
# Time: about a minute on two cores. Install, in a clone of deep5: `pip install '.[onnxruntime,report]' jupyterlab`.

# %%
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd

import deep5 as d5
from deep5.measuring.statistics import LOOKS, floor_of, judge

alt.renderers.enable("svg")
print("deep5", d5.__version__)

# %% [markdown]
# ## 1. Three candidates
#
# "Which is faster?" has an answer only between candidates that do the same. The three below test a comparison rather
# than a framework, because you know the right answer for each:
#
# - `Plain` runs ONNX models with ONNX Runtime.
# - `Twin` is the same code under another name. A comparison that finds a difference here is wrong.
# - `Hurried` rounds what it computes with to 16 bits, as some fast modes do. It trains a network, and its accuracy
#   may even be the same, but it computes something else.
#
# Comparisons run each candidate in fresh processes, so the classes are in a file.

# %%
# %%writefile engines.py
import onnxruntime

import deep5 as d5


class Plain(d5.ONNXEngine):
    """ONNX Runtime."""

    name = "plain"
    requires = ("onnxruntime",)

    def version(self):
        return onnxruntime.__version__

    def compile(self, model, *, threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(None, inputs)


class Twin(Plain):
    """The same under another name."""

    name = "twin"


def rounded(x):
    return x.astype("float16").astype("float32") if x.dtype == "float32" else x


class Hurried(Plain):
    """The same with inputs and parameters in 16 bits."""

    name = "hurried"

    def compile(self, model, *, threads):
        run = super().compile(model, threads=threads)
        return lambda inputs: run({name: rounded(x) for name, x in inputs.items()})


# %% [markdown]
# One call does everything; `deep5 compare` is the same on the command line. It trains LeNet on the handwritten digits
# as the recipe `digits_lenet` says. First it proves that the candidates train the same network as a NumPy reference
# in float64. Then it times training steps, in two fresh processes of each candidate. On a machine that has no
# calibration of the last day, it measures the noise of the machine before.

# %%
names = ["engines.py:Plain", "engines.py:Twin", "engines.py:Hurried"]
comparison = d5.run_comparison("digits_lenet", frameworks=names, threads=1, steps=20, seed=0)
comparison

# %% [markdown]
# Read the result from the top. `Twin` has a verdict against the baseline `Plain`. `Hurried` has none: it is
# *different*, and deep5 did not time it. The warnings say what makes the numbers doubtful; on a machine that runs
# other programs, there are some.
#
# ## 2. The proof
#
# The reference trains in float64, and each candidate is compared with it. Part (b) starts from states of that
# training and compares the loss there, the loss a step later, and the update; part (c) compares gradients; part (d)
# trains freely in float32. The table has the worst error of each row, and what is allowed.

# %%
rows = pd.DataFrame(comparison.document["equivalence"])
rows["row"] = "(" + rows["part"] + ") " + rows["what"]
proof = rows.pivot_table(index="row", columns="candidate", values="relative", sort=False)
proof["allowed"] = rows.groupby("row")["allowed"].first()
proof.style.format("{:.1e}")

# %%
order = list(proof.index)
y = alt.Y("row:N", sort=order, title=None).axis(labelLimit=300)
base = alt.Chart(rows, width=300, height=240, title="Errors of the proof, and what is allowed")
x = alt.X("relative:Q", title="Relative error (1)").scale(type="log").axis(format=".0e", tickCount=5)
errors = base.mark_point(filled=True, size=60).encode(
    x=x,
    y=y,
    yOffset=alt.YOffset("candidate:N").scale(domain=names),
    color=alt.Color("candidate:N", title="Candidate").scale(domain=names),
    shape=alt.Shape("candidate:N", title="Candidate").scale(domain=names),
)
allowed = base.mark_tick(color="gray", thickness=3, size=24).encode(x="allowed:Q", y=y)
allowed + errors

# %% [markdown]
# The gray ticks are the allowed errors. `Plain` and `Twin` have the same errors, to the left of them. `Hurried` lies
# to the right in four rows: losses and gradients are off by hundreds of times what float32 explains. Its updates
# pass, because they are made from its own gradient: the rule is right, what it gets is not. So the table also says
# *where* a candidate differs.
#
# No accuracy would have shown this. A candidate that fails the proof has no time in the result, whether it is faster
# or not.
#
# ## 3. The noise floor
#
# Two processes that run the same code do not take the same time. Comparing them is an A/A test. The calibration ran
# three small workloads in 32 fresh processes. The floor is the ratio that identical code reaches on this machine; a
# smaller difference between candidates means nothing.

# %%
calibration = comparison.document["calibration"]
noise = pd.DataFrame(calibration["processes"]).rename_axis("process").reset_index()
noise = noise.melt("process", var_name="workload", value_name="seconds")
noise["ratio"] = noise["seconds"] / noise.groupby("workload")["seconds"].transform("median")
workloads = calibration["processes"].values()
floors = {rounds: max(floor_of(times, rounds) for times in workloads) for rounds in (2, *LOOKS)}
table = pd.DataFrame({"noise floor (ratio)": floors}).rename_axis("processes per candidate")
table.style.format("{:.3f}")

# %%
chart = alt.Chart(noise, width=480, height=220, title="The same code in 32 fresh processes")
chart.mark_point(filled=True).encode(
    x=alt.X("process:Q", title="Process, in order (number)").scale(domain=[0, 32]),
    y=alt.Y("ratio:Q", title="Time / median time (1)").scale(zero=False),
    color=alt.Color("workload:N", title="Workload"),
    shape=alt.Shape("workload:N", title="Workload"),
)

# %% [markdown]
# With two processes per candidate, a difference has to exceed the largest ratio of any two of these processes. With
# ten to thirty, single slow processes no longer matter, and the floor falls. That is why `--rigorous` finds small
# differences and the quick mode does not. On a busy machine the points scatter widely, and the floor of the quick
# mode may be a factor of two or more.
#
# ## 4. The verdict
#
# `Twin` is the same code as `Plain`:

# %%
twin = comparison.verdicts[0]
assert twin["word"] == "no difference shown"
keys = ("candidate", "baseline", "word", "ratio", "rounds")
pd.Series({key: twin[key] for key in keys}).to_frame("verdict")

# %% [markdown]
# "No difference shown" is not "equally fast". It says that these measurements do not separate the two from identical
# code. The ratio may be 1.1 and mean nothing.
#
# What would more processes show? A rigorous comparison takes minutes, so the next cell **simulates** one: a machine
# on which processes differ by 2 %, and candidates that are slower by 0, 1, 3 and 10 %. These are not measurements,
# but the functions that give the verdict are those of deep5. A comparison is evaluated after 10, 16, 24 and 30 rounds
# of one process each, and ends when there is an answer.


# %%
def simulated(slower, noise=0.02):
    """The verdict on a candidate that is slower by this share, on a simulated machine."""
    draw = np.random.default_rng(0)

    def processes(count):
        return 0.005 * np.exp(noise * draw.standard_normal(count))

    calibration, baseline, candidate = processes(32), processes(30), processes(30) * (1 + slower)
    first = draw.random(30) < 0.5  # which of the two ran first, by round
    for rounds in LOOKS:
        floor = floor_of(calibration, rounds)
        verdict = judge(candidate[:rounds], baseline[:rounds], floor, first[:rounds])
        if verdict.word != "no difference shown":
            break
    return verdict


verdicts = {f"{100 * slower:g} % slower": simulated(slower) for slower in (0, 0.01, 0.03, 0.1)}
table = pd.DataFrame(
    {
        "true difference": list(verdicts),
        "verdict": [verdict.word for verdict in verdicts.values()],
        "ratio": [verdict.ratio for verdict in verdicts.values()],
        "low": [verdict.interval.low for verdict in verdicts.values()],
        "high": [verdict.interval.high for verdict in verdicts.values()],
        "noise floor": [verdict.floor for verdict in verdicts.values()],
        "smallest shown": [verdict.smallest for verdict in verdicts.values()],
        "p": [verdict.p for verdict in verdicts.values()],
        "rounds": [verdict.rounds for verdict in verdicts.values()],
    }
)
table.style.format(precision=3).format("{:.2g}", subset="p").hide(axis="index")

# %%
y = alt.Y("true difference:N", sort=list(verdicts), title="True difference")
table["below"] = 1 / table["noise floor"]
base = alt.Chart(table, width=400, height=160, title="Simulated verdicts with 95 % intervals")
band = base.mark_bar(color="gray", opacity=0.4, height=24)
band = band.encode(x="below:Q", x2="noise floor:Q", y=y)
words = ["no difference shown", "slower"]
color = alt.Color("verdict:N", title="Verdict").scale(domain=words)
ends = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q", y=y, color=color)
middle = base.mark_point(filled=True, size=70, opacity=1).encode(
    x=alt.X("ratio:Q", title="Time of the candidate / time of the baseline (1)").scale(zero=False),
    y=y,
    color=color,
    shape=alt.Shape("verdict:N", title="Verdict").scale(domain=words),
)
band + ends + middle

# %% [markdown]
# The gray bars are the noise floor. A verdict of "slower" requires three things: the interval excludes 1, the ratio
# is outside the floor, and an exact test finds the difference. The candidate that is 1 % slower gets no verdict, and
# the column *smallest shown* says why: with this noise, thirty rounds find a difference of 3 % in 95 of 100 cases,
# and not one of 1 %. [How deep5 measures](../explanation/measurement.md) has the rules and their error rates.
#
# ## 5. The audit
#
# A result folder contains every raw sample. `deep5 audit` derives all numbers again from them, and checks them
# against each other. It executes nothing from the folder, so you can audit the results of other people.


# %%
def deep5(arguments):
    """Run the command `deep5` with this notebook's Python; its output, and its exit status."""
    command = [sys.executable, "-m", "deep5", *shlex.split(arguments)]
    plain = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=plain)
    if done.returncode > 1:
        raise RuntimeError(done.stderr)
    return done.stdout, done.returncode


output, status = deep5("audit results")
assert status == 0
print(output.splitlines()[-1])

# %% [markdown]
# Now plant a better story: in a copy, `Twin` is a fifth faster, with a ratio and a verdict that agree.

# %%
shutil.copytree(comparison.folder, "doctored/comparison", dirs_exist_ok=True)
file = Path("doctored/comparison/comparison.json")
document = json.loads(file.read_text("utf-8"))
for result in document["results"]:
    if result["candidate"] == "engines.py:Twin":
        result["median_s"] *= 0.8
document["verdicts"][0].update(word="faster", ratio=0.8)
file.write_text(json.dumps(document), "utf-8")

output, status = deep5("audit doctored")
assert status == 1
print("\n".join(line for line in output.splitlines() if not line.startswith("not re-checked")))

# %% [markdown]
# Each finding names the broken rule. The medians do not follow from the samples, and the verdict does not follow from
# the rounds. To pass, one would have to invent a consistent set of raw samples, processes, clock readings and hashes.
# The audit cannot detect that, and says so; [a signature](../how_to/results.md#signatures) shows whether a folder was
# changed later.
#
# ## 6. What you may publish
#
# From a comparison like this one, with `--rigorous` on a quiet machine, you may write for example:
#
# - "On this machine, with these versions and one thread, a training step of LeNet in `A` takes 0.87 (0.85 to 0.88) of
#   the time in `B`." Name both candidates, the machine, the versions, the threads and the interval. All are in the
#   result.
# - "We found no difference; one of 3 % or more would have been found in 95 of 100 cases." Use the value of *smallest
#   shown*.
# - "`C` computes something else, and is not compared." With the row of the proof that differs.
#
# From no comparison:
#
# - "`A` is faster." Without a workload and a machine, that is no statement. Another batch size or network may turn it
#   around.
# - "They are equally fast", from "no difference shown".
# - A difference from a quick comparison that it did not claim, or from one run of each.
# - The smallest of many ratios. A table with twenty verdicts contains a wrong one more often than a table with one:
#   cite those that hold *for the whole table*.
#
# Publish the folder with the numbers. `deep5 report results -o report.html` makes one page of it, and readers can
# audit it.
#
# ## What you learned
#
# - The proof comes before the time. It refuses a candidate that computes something else, and says where it differs.
# - Noise is measured with identical code, and no difference below it counts.
# - A verdict has an interval; "no difference shown" has the smallest difference that would have been found.
# - `deep5 audit` derives every number again from the raw samples.
#
# ## Next
#
# - [A first comparison](../start/first_comparison.md) of real frameworks, and [which to choose](../start/choose.md)
# - [Comparing: all options](../how_to/comparing.md)
# - [How deep5 measures](../explanation/measurement.md), and [what deep5 itself costs](../results/overhead.md)
# - [A back-end in an afternoon](back_end_in_an_afternoon.md)
