# %% [markdown]
# # Operators
#
# You write one operator in Python and in C++, let deep5 find a mistake in it, use it in a network on four frameworks,
# and then measure what the operators of DeepBench cost on each framework.
#
# Time on two cores: 40 seconds to two minutes, the longer the larger the processor's cache. Installation, in a clone of
# deep5 (C++ needs a compiler, such as `g++`):
#
# ```sh
# pip install '.[pytorch,onnxruntime,jax,report]' jupyterlab
# ```

# %%
import json
import textwrap

import altair as alt
import numpy as np
import pandas as pd
from scipy.stats import gaussian_kde

import deep5 as d5
from deep5.recipes import deepbench_conv, deepbench_gemm

alt.renderers.enable("svg")

# %% [markdown]
# ## An operator in Python
#
# `IPow` raises every element to an integer power, $y = x^p$. Its gradient is $\partial L / \partial x = p\,x^{p-1}
# \cdot \partial L / \partial y$. An operator is a class with three methods. `specs` says which outputs there are, here
# one with the shape and element type of the input. `forward` computes them. `backward` gets the gradients by the
# outputs and returns those by the inputs.


# %%
@d5.register_operator("IPow", domain="org.example")
class IPow(d5.Operator):
    """x to the power of an integer."""

    def __init__(self, power):
        self.power = power

    def specs(self, x):
        return (x,)

    def forward(self, x):
        return x**self.power

    def backward(self, output_grads, inputs, outputs, needs):
        return (self.power * inputs[0] ** (self.power - 1) * output_grads[0],)


IPow(3).forward(np.array([1.0, 2.0, 3.0]))

# %% [markdown]
# ## Check it
#
# Three correct numbers prove little. `check_forward` compares the values with a reference function in several element
# types, sizes and memory layouts, at zeros, ties, NaN and infinity, and checks that the operator changes nothing else.

# %%
x = np.random.default_rng(0).standard_normal((3, 4))


def cube(x):
    """The expected values, in NumPy."""
    return np.power(x, 3)


report = d5.check_forward(IPow(3), [x], reference=cube)
print(report.verdict)


def table(rows):
    """Some checks as a table."""
    found = pd.DataFrame([{"check": row.check, "error": row.error, "allowed": row.allowed} for row in rows])
    return found.style.hide().format("{:.1e}", subset=["error", "allowed"])


table([row for row in report.rows if "against" in row.check])

# %% [markdown]
# Each row has the largest error and the allowed one. The allowed error follows from the element type and from how far
# the result moves when the input moves by a rounding error: no author of a test chose it. `check_gradient` compares
# `backward` with central differences in float64:

# %%
report = d5.check_gradient(IPow(3), [x])
print(report.verdict)
table([row for row in report.rows if row.allowed and row.error])

# %% [markdown]
# ## A wrong gradient
#
# A check that never fails is worth nothing. Here is a typical mistake: the exponent of the gradient is not reduced by
# one. Nothing fails when the class is used.


# %%
class WrongIPow(IPow):
    """The gradient has the wrong exponent."""

    def backward(self, output_grads, inputs, outputs, needs):
        return (self.power * inputs[0] ** self.power * output_grads[0],)


report = d5.check_gradient(WrongIPow(3), [x], raises=False)
print(report.verdict)
for row in report.failures:
    print(textwrap.fill(row.note.partition("; tolerance")[0], 100))

# %% [markdown]
# The message names the element that is furthest off, both values and the allowed difference. With `raises=True`, the
# default, it is an error, so that a test suite needs no more than the call.
#
# ## The same in C++
#
# In C++, the operator is a class template that includes deep5's header. deep5 compiles it on first use, once for each
# element type, and every framework calls it without going through Python.


# %%
@d5.register_operator("FastIPow", domain="org.example")
class FastIPow(d5.CppOperator):
    """x to the power of an integer, in C++."""

    source = """
    template <typename T>
    class FastIPow : public deep5::Operator {
     public:
      explicit FastIPow(int64_t power) : power_(power) {}

      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
    #pragma omp parallel for
        for (int64_t i = 0; i < x.size(); ++i) y[i] = ipow(x[i], power_);
      }

      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T>, deep5::Tensor<T> dx) {
    #pragma omp parallel for
        for (int64_t i = 0; i < x.size(); ++i) dx[i] = power_ * ipow(x[i], power_ - 1) * dy[i];
      }

     private:
      static T ipow(T x, int64_t power) {
        T y = 1;
        for (; power > 0; --power) y *= x;
        return y;
      }

      int64_t power_;
    };
    """

    def __init__(self, power):
        super().__init__(power=power)

    def specs(self, x):
        return (x,)


kinds = ["float64", "float32"]
print(d5.check_forward(FastIPow(3), [x], reference=cube, dtypes=kinds).verdict)
print(d5.check_gradient(FastIPow(3), [x], dtypes=kinds).verdict)

# %% [markdown]
# The checks of an operator in C++ run in a separate process first, so that one that crashes does not take the notebook
# with it. They also look at the memory around what it writes, and run it on one, two and three threads.
#
# ## A node of a network
#
# A registered operator is a node that any network may contain. This network computes $y = (x \cdot w)^3$ and the mean
# of $y$ as its loss. PyTorch and JAX trace the Python methods on their own arrays; for ONNX Runtime they become
# operators of ONNX.


# %%
def powers(operator):
    """A network with the operator as a node."""
    build = d5.NetworkBuilder("powers")
    product = build.op("Mul", build.input("x", ("N", 3)), build.parameter("w", (3,), d5.networks.ones))
    power = build.op(operator, product, domain="org.example", power=3)
    return build.network({"y": power, "loss": build.op("ReduceMean", power, keepdims=0)})


rows = []
for operator in ("IPow", "FastIPow"):
    for name in ("pytorch", "jax", "onnxruntime", "reference"):
        executor = d5.framework(name).executor(powers(operator))
        executor.inference_and_backprop({"x": np.array([[1.0, 2.0, 3.0]], dtype=np.float32)})
        gradient = d5.to_numpy(executor.gradients()["w"])
        rows.append({"operator": operator, "framework": name, "gradient by w": gradient.round(4).tolist()})
pd.DataFrame(rows).style.hide()

# %% [markdown]
# At $w = 1$ the gradient is $x^3$: every row should have 1, 8 and 27.
#
# ## DeepBench
#
# Now the time. [DeepBench](https://github.com/baidu-research/DeepBench) (Baidu Research, Apache-2.0) lists the sizes of
# convolutions and matrix products that occur in real networks. deep5's recipes `deepbench_conv` and `deepbench_gemm`
# time them on every framework, through deep5 and on the *bare* framework. Bare is hand-written code: `torch.matmul`, a
# session of ONNX Runtime, `np.matmul`. The difference between the two is the cost of deep5.
#
# The whole set takes hours on two cores. A recipe has sizes for that purpose, and here you add one: the problems of at
# most 0.1 GFLOP, an evenly spread selection of them, and three frameworks. Such a result is *open*: its numbers cannot
# be compared with those of the full recipe. The problem of the paper's box plot, a product of 2560 × 2560 and 2560 ×
# 64, is timed separately.


# %%
def timed(recipe, **size):
    """Run a recipe at a size of your own."""
    size |= {"frameworks": ("pytorch", "onnxruntime", "reference"), "pictures": False, "backward": False}
    return d5.run_recipe(
        recipe.FIXED, recipe.MUTABLE, recipe.METRICS, sizes={"tutorial": size}, size="tutorial", quiet=True
    )


gemm = timed(deepbench_gemm, limit_gflop=0.1, take=8, rounds=7)
conv = timed(deepbench_conv, limit_gflop=0.1, take=8, rounds=7)
box = timed(deepbench_gemm, limit_gflop=1, take=1, rounds=15)
gemm

# %% [markdown]
# `bare_ratio` is the median, over all sizes and frameworks, of the time through deep5 divided by that of the bare
# framework. Look at its interval: if it is near 1, deep5's part of the time is small. `operator_cost` is the same as a
# difference.
#
# ## The raw values
#
# The result folder has every sample. `operators.json` describes each candidate and names its series of raw values, and
# `samples()` returns them. Every time in the charts below is a median of these values.

# %%
NAMES = {"pytorch": "PyTorch", "onnxruntime": "ONNX Runtime", "reference": "NumPy"}


def samples_of(result):
    """One row for each raw time, in milliseconds per call."""
    raw = result.samples()
    return pd.DataFrame(
        [
            {
                "kernel": row["problem"],
                "size": row["title"],
                "framework": NAMES[row["framework"]],
                "candidate": NAMES[row["framework"]] + (" bare" if row["bare"] else ""),
                "time": 1000 * sample.value,
            }
            for row in json.loads((result.folder / "operators.json").read_text())["rows"]
            for series in row["series"]
            for sample in raw[series]
        ]
    )


samples = {"matrix products": samples_of(gemm), "convolutions": samples_of(conv)}
medians = {
    name: own.groupby(["kernel", "framework", "candidate"], sort=False)["time"].agg(["median", "count"]).reset_index()
    for name, own in samples.items()
}
samples["matrix products"].head(5).style.hide()

# %% [markdown]
# ## All kernels
#
# The first chart follows figure 6 of the paper of Deep500 (Ben-Nun et al., IPDPS 2019). A *violin* shows the
# distribution of the times over all kernels, each a median. The axis is logarithmic, because the kernels differ by
# orders of magnitude. The ticks are the kernels themselves: with eight of them, the outline of a violin is only
# a guide for the eye.

# %%
ORDER = [name + kind for name in NAMES.values() for kind in ("", " bare")]
COLORS = alt.Scale(domain=list(NAMES.values()), range=["#d55e00", "#0072b2", "#009e73"])


def violins(found, title):
    """A violin for each candidate, with a tick for each kernel."""
    rows = [{**row, "kind": "kernel", "time": row["median"]} for row in found.to_dict("records")]
    low, high = found["median"].min() / 1.5, found["median"].max() * 1.5
    for (framework, candidate), own in found.groupby(["framework", "candidate"]):
        grid = np.geomspace(own["median"].min() / 1.4, own["median"].max() * 1.4, 60)
        density = gaussian_kde(np.log10(own["median"]))(np.log10(grid))
        same = {"kind": "density", "framework": framework, "candidate": candidate}
        rows += [{**same, "time": t, "density": d} for t, d in zip(grid, density / density.max(), strict=True)]
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    decades = alt.Axis(values=[10.0**power for power in range(-4, 5)], format="~g")
    time = alt.Y("time:Q", title="median time of a call (ms)", scale=scale, axis=decades)
    color = alt.Color("framework:N", scale=COLORS, legend=None)
    base = alt.Chart(pd.DataFrame(rows)).properties(width=76, height=240)
    shape = base.transform_filter("datum.kind == 'density'").mark_area(orient="horizontal", opacity=0.45)
    ticks = base.transform_filter("datum.kind == 'kernel'").mark_tick(orient="horizontal", thickness=1.5, width=24)
    header = alt.Header(labelExpr="split(datum.label, ' ')", labelFontSize=12)
    return (
        alt.layer(
            shape.encode(time, alt.X("density:Q", stack="center", axis=None), color),
            ticks.encode(time, color, x=alt.value(38)),
        )
        .facet(alt.Facet("candidate:N", sort=ORDER, title=None, header=header), columns=6, spacing=6)
        .properties(title=title)
    )


violins(medians["matrix products"], "Matrix products of DeepBench, one thread")

# %%
violins(medians["convolutions"], "Convolutions of DeepBench, one thread")

# %% [markdown]
# Compare each framework with its bare form first: the two violins should look alike, as deep5 adds only microseconds to
# a call. The convolutions in NumPy are an exception: deep5's reference and the hand-written code are two algorithms,
# and their difference is not the cost of deep5. Then compare the frameworks.
#
# ## One kernel
#
# The box plot shows the samples of one problem: the middle half in the box with its median, all of them as points, the
# whiskers from the smallest to the largest.

# %%
one = samples_of(box)
place = alt.X("candidate:N", sort=ORDER, title=None, axis=alt.Axis(labelExpr="split(datum.value, ' ')", labelAngle=0))
time = alt.Y("time:Q", title="time of a call (ms)", scale=alt.Scale(zero=False))
color = alt.Color("framework:N", scale=COLORS, legend=None)
boxes = alt.Chart(one).mark_boxplot(extent="min-max", size=28, opacity=0.6, rule={"color": "#808080"})
points = alt.Chart(one).mark_circle(size=14, opacity=0.8).encode(xOffset=alt.value(22))
alt.layer(boxes.encode(place, time, color), points.encode(place, time, color)).properties(
    width=480, height=240, title=f"Matrix product {one['size'].iloc[0]}, one thread"
)

# %% [markdown]
# Every median with its interval at 95 %, from the same samples, is in `operators.json`:

# %%
rows = pd.DataFrame(json.loads((box.folder / "operators.json").read_text())["rows"])
raw = one.groupby("candidate", sort=False)["time"].median().to_numpy()
assert np.allclose(raw, 1000 * rows["median_s"])
rows[["candidate", "median_s", "low_s", "high_s", "gflop_s"]].style.hide().format(precision=5)

# %% [markdown]
# ## What two cores can and cannot show
#
# - They can show the order of magnitude of a kernel's time, and that deep5's cost is small beside it: both candidates
#   of a framework run in the same process, in alternation, in a new random order each round.
# - They cannot show a small difference between frameworks. Everything ran in one process, in seconds, on a machine with
#   other work. Where an interval is wide, `operators.json` says so, with reasons and remedies. `deep5 compare` has the
#   rules for a verdict.
# - They say nothing about other machines. One thread was used, as the recipe defines it. A processor with other vector
#   units, or a GPU, may turn the order around.
# - They do not stand for DeepBench: these are its small problems. The large ones, in which a library's blocking counts
#   most, were left out to save your time.
#
# ## What you learned
#
# - An operator is a class with `specs`, `forward` and `backward`, in Python or in C++.
# - `check_forward` and `check_gradient` derive their tolerances, and find a wrong gradient that nothing else reports.
# - A registered operator is a node of a network on every framework.
# - A recipe at a size of your own is open; every time is a median of raw values that the result keeps.
#
# ## Next
#
# - [Customizing learning](customizing_learning.md): write an optimizer from a paper.
# - [A back-end in an afternoon](back_end_in_an_afternoon.md): your own framework.
# - [Operators in detail](../how_to/operators.md): optional inputs, several outputs, CUDA, all checks.
# - [How deep5 measures](../explanation/measurement.md) and [what it costs](../results/overhead.md).
