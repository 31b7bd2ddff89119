"""Serving recipes: on each back-end, their metrics, and an audit of honest and of doctored results."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from command import Command
from deep5.audit import audit
from deep5.bench.serving import http_server
from deep5.bench.serving.model import ServedModel, served_network
from deep5.bench.serving.plan import ServingPlan
from deep5.bench.serving.records import REQUESTS, Request, ServedLoad, read_requests
from deep5.bench.serving.system import BatchServer
from deep5.core.errors import RecipeError, RunFailed, ShapeError, UsageError
from deep5.core.metric import Metric
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.results.result import Result, load
from deep5.results.store import result_folders
from deep5.run.execute import execute
from deep5.run.record import _scope

pytestmark = pytest.mark.usefixtures("warm")

NAME = "serving_digits"
BACK_ENDS = ("pytorch", "tensorflow", "jax", "onnxruntime", "reference")
FIXED: dict[str, Any] = {
    "scenario": "server",
    "queries": 30,
    "rate": (100, 300),
    "bound_s": 0.5,
    "model": "mlp",
    "model_kwargs": {"features": 16, "hidden": 8, "classes": 3},
    "dataset": "synthetic",
    "dataset_kwargs": {"shape": (16,), "classes": 3, "train": 8, "test": 40},
    "samples": 25,
}
METRICS: list[Any] = [
    (d5.FailedRequests(), 0),
    (d5.LatencyPercentile(50), None),
    (d5.LatencyPercentile(99), "<= 10 s"),
    (d5.RequestThroughput(), "> 1 requests/s"),
    (d5.Goodput(0.5), None),
    (d5.HighestRate(0.5), None),
    (d5.LatencyPercentile(50, rate=100), None),
    (d5.Goodput(0.5, rate=7), None),
]


def run(out: Path, fixed: dict[str, Any] | None = None, **mutable: Any) -> Result:
    both = {"framework": "reference", "max_batch": 4, "deadline_s": 0.002, "seed": 3, **mutable}
    given = {key: value for key, value in {**FIXED, **(fixed or {})}.items() if value is not None}
    return execute(Recipe.make(given, both, METRICS, name="served"), out=out, quiet=True)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(tmp_path_factory.mktemp("served"))


def of_json(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize("framework", BACK_ENDS)
def test_the_recipe_runs_on_each_back_end(framework: str, tmp_path: Path) -> None:
    pytest.importorskip({"pytorch": "torch", "reference": "numpy"}.get(framework, framework))
    recipe = load_recipe(NAME).at_size("smoke").with_settings({"framework": framework})
    served = execute(recipe, out=tmp_path, quiet=True)
    assert served.status == "success"
    document = served.document
    assert (document["level"], document["framework"]["name"]) == (1, framework)
    rows = read_requests(served.folder / REQUESTS)
    assert [row.request for row in rows] == list(range(120))
    assert {row.status for row in rows} == {"ok"}
    assert served.metric("failed_requests") == 0
    answer = audit([served.folder])
    assert not answer.findings, answer.findings


@pytest.mark.parametrize("scenario", ["single_stream", "multi_stream", "offline"])
def test_the_other_scenarios_pass_the_audit(scenario: str, tmp_path: Path) -> None:
    served = run(tmp_path, {"scenario": scenario, "rate": None})
    assert served.accepted is True
    document = of_json(served.folder, "serving.json")
    (phase,) = document["phases"]
    each = 8 if scenario == "multi_stream" else 1
    assert (phase["requests"], phase["queries"], phase["failures"]) == (30 * each, 30, 0)
    assert document["plan"]["percentile"] == (90 if scenario == "single_stream" else 99)
    if scenario == "multi_stream":
        assert phase["mean_batch"] == 4, "eight requests at once fill two batches"
    answer = audit([served.folder])
    assert not answer.findings, answer.findings


def test_the_metrics_follow_from_the_rows(result: Result) -> None:
    rows = read_requests(result.folder / REQUESTS)
    document = of_json(result.folder, "serving.json")
    last = rows[30:]
    latencies = sorted(row.last_s - row.scheduled_s for row in last)
    seconds = max(row.last_s for row in last) - document["begins_s"][1]
    found = {
        row["name"] + str(row["parameters"].get("percentile", "")): row["value"]
        for row in result.document["metrics"]
        if row["parameters"].get("rate") is None
    }
    assert found["latency_percentile50"] == latencies[14], "the fifteenth of thirty"
    assert found["latency_percentile99"] == latencies[29]
    assert found["request_throughput"] == pytest.approx(30 / seconds)
    assert found["goodput"] == pytest.approx(sum(each <= 0.5 for each in latencies) / seconds)
    assert found["failed_requests"] == 0
    assert document["server"] == {"batch_sizes": [1, 2, 4], "samples": 25, "transport": "in_process"}
    assert max(row.batch or 0 for row in rows) <= 4


def test_the_same_seed_makes_the_same_load(result: Result, tmp_path: Path) -> None:
    again, other = run(tmp_path), run(tmp_path, seed=4)
    mine, same, different = (read_requests(each.folder / REQUESTS) for each in (result, again, other))
    assert [row.sample for row in mine] == [row.sample for row in same]
    assert [row.sample for row in mine] != [row.sample for row in different]
    starts = [of_json(each.folder, "serving.json")["begins_s"][0] for each in (result, again)]
    np.testing.assert_allclose(
        [row.scheduled_s - starts[0] for row in mine[:30]],
        [row.scheduled_s - starts[1] for row in same[:30]],
        atol=1e-9,
    )


def test_an_honest_result_passes_the_audit(result: Result) -> None:
    answer = audit([result.folder])
    assert not answer.findings, answer.findings
    assert not any("the audit has no formula for it" in said for said in answer.skipped)


# Doctored results


def in_rows(change: Callable[[list[list[str]]], None]) -> Callable[[Path], None]:
    """Change the cells of requests.csv: by line, the columns."""

    def doctor(folder: Path) -> None:
        lines = [line.split(",") for line in (folder / REQUESTS).read_text().splitlines()]
        change(lines)
        (folder / REQUESTS).write_text("\n".join(",".join(line) for line in lines) + "\n")

    return doctor


HEAD = [
    "request", "query", "phase", "sample", "scheduled_s", "issued_s", "started_s", "first_s", "last_s", "batch",
    "tokens_in", "tokens_out", "status",
]  # fmt: skip


def cell(line: list[str], name: str, value: Any) -> None:
    line[HEAD.index(name)] = str(value)


def slowest(lines: list[list[str]]) -> list[str]:
    last, scheduled = HEAD.index("last_s"), HEAD.index("scheduled_s")
    return max(lines[31:], key=lambda line: float(line[last]) - float(line[scheduled]))


def faster(lines: list[list[str]]) -> None:
    line = slowest(lines)
    start = float(line[HEAD.index("started_s")])
    for name in ("first_s", "last_s"):
        cell(line, name, start + 1e-5)


def scheduled_when_issued(lines: list[list[str]]) -> None:
    """What a generator with coordinated omission would write."""
    for line in lines[1:]:
        cell(line, "scheduled_s", line[HEAD.index("issued_s")])


def slowest_left_out(lines: list[list[str]]) -> None:
    lines.remove(slowest(lines))


def one_twice(lines: list[list[str]]) -> None:
    lines[7] = list(lines[6])


def a_failure_hidden(lines: list[list[str]]) -> None:
    cell(lines[-1], "status", "ValueError: no")


def a_larger_batch(lines: list[list[str]]) -> None:
    cell(lines[5], "batch", 7)


def another_sample(lines: list[list[str]]) -> None:
    cell(lines[5], "sample", (int(lines[5][3]) + 1) % 25)


def answered_before_issued(lines: list[list[str]]) -> None:
    cell(lines[5], "issued_s", float(lines[5][HEAD.index("last_s")]) + 1)


def in_serving(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def doctor(folder: Path) -> None:
        document = of_json(folder, "serving.json")
        change(document)
        (folder / "serving.json").write_text(json.dumps(document))

    return doctor


def in_result(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def doctor(folder: Path) -> None:
        document = of_json(folder, "result.json")
        change(document)
        (folder / "result.json").write_text(json.dumps(document))

    return doctor


def a_rate_that_was_not(document: Any) -> None:
    document["metrics"][-1].update(value=1.0, missing=None, samples=0)


def twice(name: str) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for row in document["metrics"]:
            if row["name"] == name and row["value"] is not None:
                row["value"] *= 2

    return change


@pytest.mark.parametrize(
    ("doctor", "rule", "what"),
    [
        (in_rows(faster), 8, "requests.csv"),
        (in_rows(faster), 9, "of rate 1 in serving.json"),
        (in_rows(scheduled_when_issued), 8, "the scheduled times of rate 0 are not those drawn from the seed"),
        (in_rows(slowest_left_out), 8, "the number of requests of requests.csv, by the plan; stored 59, recomputed 60"),
        (in_rows(one_twice), 8, "the requests of requests.csv, by the plan"),
        (in_rows(a_failure_hidden), 9, "failures of rate 1 in serving.json; stored 0, recomputed 1"),
        (in_rows(a_failure_hidden), 9, "the value of failed_requests, by requests.csv; stored 0"),
        (in_rows(a_failure_hidden), 13, "1 requests failed; allowed: a warning that says so"),
        (in_rows(a_larger_batch), 8, "allowed: up to 4"),
        (in_rows(another_sample), 8, "the samples of rate 0, by the seed"),
        (in_rows(answered_before_issued), 8, "its times are missing or out of order"),
        (in_serving(lambda told: told["phases"][0].update(throughput=1e6)), 9, "throughput of rate 0 in serving.json"),
        (in_serving(lambda told: told["phases"][1]["percentiles"].update({"99": 1e-6})), 9, "p99 of rate 1"),
        (in_serving(lambda told: told["plan"].update(max_batch=64)), 14, "the plan of serving.json, by the recipe"),
        (in_serving(lambda told: told.update(begins_s=[0.0, 0.0])), 8, "the scheduled times of rate 1"),
        (in_result(twice("goodput")), 9, "the value of goodput"),
        (in_result(twice("highest_rate")), 9, "the value of highest_rate"),
        (in_result(twice("latency_percentile")), 9, "the value of latency_percentile"),
        (in_result(a_rate_that_was_not), 9, "the value of goodput at a rate that the load does not have"),
        (in_result(lambda told: told.update(level=2)), 14, "the level of a result of serving; stored 2, recomputed 1"),
        (lambda folder: (folder / REQUESTS).unlink(), 8, "there is no requests.csv: the raw values are missing"),
        (lambda folder: (folder / "serving.json").unlink(), 9, "there is no serving.json"),
    ],
)
def test_an_audit_finds_what_was_changed(
    result: Result, tmp_path: Path, doctor: Callable[[Path], None], rule: int, what: str
) -> None:
    folder = tmp_path / result.folder.name
    shutil.copytree(result.folder, folder)
    doctor(folder)
    findings = audit([folder]).findings
    assert any(finding.rule == rule and what in finding.what for finding in findings), findings


def written(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


@pytest.mark.parametrize(
    "doctor",
    [
        written(REQUESTS, ""),
        written(REQUESTS, "\0\1\n"),
        written(REQUESTS, ",".join(HEAD) + "\n" + "1," * 12 + "\n"),
        in_rows(lambda lines: cell(lines[4], "last_s", "nan")),
        in_rows(lambda lines: cell(lines[4], "last_s", "1e999")),
        in_rows(lambda lines: cell(lines[4], "request", "9" * 5000)),
        in_rows(lambda lines: cell(lines[4], "batch", "-1")),
        in_rows(lambda lines: lines[4].append("7")),
        written("serving.json", "[]"),
        written("serving.json", "{}"),
        in_serving(lambda told: told.update(begins_s=["x", None])),
        in_serving(lambda told: told["server"].update(samples=-1)),
        in_serving(lambda told: told["server"].pop("samples")),
        in_serving(lambda told: told.update(phases=[1, 2])),
        in_serving(lambda told: told["phases"].pop()),
        in_serving(lambda told: told["phases"][0]["percentiles"].update({"-5": 1.0})),
        in_serving(lambda told: told["phases"][0].update(percentiles=7)),
    ],
)
def test_an_audit_of_nonsense_ends_with_findings(
    result: Result, tmp_path: Path, doctor: Callable[[Path], None]
) -> None:
    folder = tmp_path / result.folder.name
    shutil.copytree(result.folder, folder)
    doctor(folder)
    found = [finding for finding in audit([folder]).findings if "SHA-256" not in finding.what]
    assert found


# Failures


def failing(network: Any, *, device: Any, seed: int) -> Any:
    """An executor that fails from its fourteenth call on."""
    executor = d5.framework("reference").executor(network, device=device, seed=seed)
    inference, calls = executor.inference, []

    def fails(inputs: Any, **given: Any) -> Any:
        calls.append(inputs)
        if len(calls) > 13:
            raise MemoryError("no memory left")
        return inference(inputs, **given)

    executor.inference = fails  # type: ignore[method-assign]
    return executor


def test_a_run_with_failures_counts_them_and_says_so(tmp_path: Path) -> None:
    given = {**FIXED, "rate": 200}
    recipe = Recipe.make(given, {"executor": failing, "max_batch": 1, "seed": 3}, METRICS, name="failing")
    served = execute(recipe, out=tmp_path, quiet=True)
    assert (served.status, served.accepted) == ("success", False)
    assert served.metric("failed_requests") == 18, "one call of the warm-up and twelve requests succeeded"
    values = {verdict.label: verdict.value for verdict in served.verdicts}
    assert values["latency_percentile[percentile=99, rate=None]"] == math.inf
    assert "18 of 30 requests failed; the first: MemoryError: no memory left" in served.document["warnings"]
    assert "failed_requests did not meet its goal" in served.document["reasons"]
    answer = audit([served.folder])
    assert not answer.findings, answer.findings


def dying(network: Any, *, device: Any, seed: int) -> Any:
    """An executor that ends its thread at its fourteenth call."""
    executor = failing(network, device=device, seed=seed)
    inference = executor.inference

    def dies(inputs: Any, **given: Any) -> Any:
        try:
            return inference(inputs, **given)
        except MemoryError:
            raise SystemExit("out of memory") from None

    executor.inference = dies
    return executor


def test_a_server_that_dies_fails_the_run_and_keeps_the_rows(tmp_path: Path) -> None:
    recipe = Recipe.make(FIXED, {"executor": dying, "max_batch": 1, "seed": 3}, METRICS, name="dying")
    message = r"the server ended: SystemExit: out of memory; 48 of 60 requests failed; what it left is in"
    with pytest.raises(RunFailed, match=message):
        execute(recipe, out=tmp_path, quiet=True)
    (folder,) = result_folders(tmp_path)
    rows = read_requests(folder / REQUESTS)
    assert [row.request for row in rows] == list(range(60))
    assert [row.status for row in rows[:12]] == ["ok"] * 12
    assert {row.status for row in rows[12:]} == {"the server ended: SystemExit: out of memory"}
    left = load(folder)
    assert (left.status, left.metric("failed_requests")) == ("failed", 48)
    assert not audit([folder]).findings


# The network in batches


def test_each_row_gets_its_own_answer() -> None:
    network = served_network(d5.networks.mlp(features=4, hidden=5, classes=3))
    executor = d5.framework("reference").executor(network)
    model = ServedModel(executor, name="mlp", max_batch=8)
    rows = [{"input": row} for row in np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)]
    for size in range(1, 8):
        for row, answer in zip(rows[:size], model.run(rows[:size]), strict=True):
            expected = d5.to_numpy(executor.inference({"input": row["input"][None]})["logits"])[0]
            # A product of another size may add in another order: a few roundings of float32.
            np.testing.assert_allclose(answer["logits"], expected, rtol=1e-5, atol=1e-6)


def test_a_row_that_cannot_run_does_not_fail_its_neighbours() -> None:
    network = served_network(d5.networks.mlp(features=4, hidden=5, classes=3))
    executor = d5.framework("reference").executor(network)
    inference = executor.inference

    def picky(inputs: Any, **given: Any) -> Any:
        if (inputs["input"] == 7).any():
            raise ValueError("a seven")
        return inference(inputs, **given)

    executor.inference = picky  # type: ignore[method-assign]
    model = ServedModel(executor, name="mlp", max_batch=4)
    found = model.run([{"input": np.full(4, value, np.float32)} for value in (1, 7, 2)])
    assert [isinstance(answer, Exception) for answer in found] == [False, True, False]
    assert str(found[1]) == "a seven"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "the input 'input' is missing; allowed: input float32[4]"),
        ({"input": np.ones(5, np.float32)}, "input 'input': got shape (5,), expected float32[4]"),
        ({"input": np.ones(4)}, "input 'input': got dtype float64, expected float32"),
        ({"inptu": np.ones(4, np.float32)}, "unknown input 'inptu'; allowed: input; did you mean 'input'?"),
    ],
)
def test_a_row_that_does_not_fit_is_named(row: dict[str, Any], message: str) -> None:
    network = served_network(d5.networks.mlp(features=4, hidden=5, classes=3))
    model = ServedModel(d5.framework("reference").executor(network), name="mlp", max_batch=2)
    assert model.fault(row) == message
    with pytest.raises(ShapeError):
        model.warm_up(row)


@pytest.mark.parametrize(
    ("network", "inputs"),
    [
        (d5.networks.ssd(classes=3), ["input"]),
        (d5.networks.center_net(classes=3), ["input"]),
        (d5.networks.policy_network(features=4, actions=2), ["input"]),
        (d5.networks.dlrm(tables=(5, 6)), ["numeric", "categories"]),
    ],
    ids=["ssd", "center_net", "policy_network", "dlrm"],
)
def test_what_only_the_loss_needs_is_no_part_of_a_request(network: d5.Network, inputs: list[str]) -> None:
    served = served_network(network)
    assert list(served.inputs) == inputs
    row = {name: np.zeros(spec.shape[1:], spec.dtype) for name, spec in served.inputs.items()}
    executors = [d5.framework("reference").executor(each) for each in (served, network)]
    (answer,) = ServedModel(executors[0], name="one", max_batch=1).run([row])
    rest = {
        name: np.zeros([size if isinstance(size, int) else 1 for size in spec.shape], spec.dtype)
        for name, spec in network.inputs.items()
        if name not in served.inputs
    }
    whole = executors[1].inference({**rest, **{name: array[None] for name, array in row.items()}})
    for name, array in answer.items():
        assert np.array_equal(array, d5.to_numpy(whole[name])[0])


@pytest.mark.parametrize(
    ("network", "name", "wrong", "message"),
    [
        (
            d5.networks.gpt(vocabulary=9, length=4, width=8, heads=1, layers=1),
            "input",
            [0, 8, -1, 0],
            "input 'input' has the element -1; allowed: 0 to 8",
        ),
        (
            d5.networks.gpt(vocabulary=9, length=4, width=8, heads=1, layers=1),
            "input",
            [0, 8, 9, 0],
            "input 'input' has the element 9; allowed: 0 to 8",
        ),
        (
            d5.networks.dlrm(tables=(5, 6)),
            "categories",
            [5, 5],
            "input 'categories' has the element 5 in column 0; allowed: 0 to 4",
        ),
    ],
    ids=["negative", "too large", "a column"],
)
def test_a_token_that_the_table_does_not_have_does_not_fit(
    network: d5.Network, name: str, wrong: list[int], message: str
) -> None:
    model = ServedModel(d5.framework("reference").executor(served_network(network)), name="one", max_batch=1)
    row = {key: np.zeros(spec.shape, spec.dtype) for key, spec in model.inputs.items()}
    assert model.fault(row) is None
    row[name] = np.array(wrong)
    assert model.fault(row) == message
    testclient = pytest.importorskip("starlette.testclient")
    tensors = [
        {"name": key, "shape": [1, *array.shape], "datatype": {"f": "FP32", "i": "INT64"}[array.dtype.kind],
         "data": array.ravel().tolist()}
        for key, array in row.items()
    ]  # fmt: skip
    with BatchServer(model.run, max_batch=1, deadline_s=0.0) as batches:
        client = testclient.TestClient(http_server.application(model, batches), base_url="http://127.0.0.1")
        answer = client.post("/v2/models/one/infer", json={"inputs": tensors})
    assert (answer.status_code, answer.json()) == (400, {"error": message})


def test_a_network_of_one_batch_size_is_padded_to_it() -> None:
    free = served_network(d5.networks.mlp(features=4, hidden=5, classes=3))
    proto = free.to_onnx()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    fixed = d5.Network.from_onnx(proto)
    executor = d5.framework("reference").executor(fixed)
    model = ServedModel(executor, name="mlp", max_batch=3)
    assert model.sizes == (4,)
    assert [answer["logits"].shape for answer in model.run([{"input": np.ones(4, np.float32)}] * 2)] == [(3,), (3,)]
    with pytest.raises(
        UsageError, match="max_batch is 8, and the network has the fixed batch size 4; allowed: at most 4"
    ):
        ServedModel(executor, name="mlp", max_batch=8)


# Recipes that make no sense


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"scenario": "servre"},
            "'scenario' is 'servre'; allowed: 'single_stream', 'multi_stream', 'server', 'offline'",
        ),
        ({"rate": (3, 2)}, "'rate' is (3, 2); allowed: queries per second above 0"),
        ({"rate": None}, "the scenario 'server' has no rate"),
        ({"deadline_s": -1}, "'deadline_s' is -1; allowed: seconds of at least 0"),
        ({"timeout_s": None}, "'timeout_s' is None; allowed: seconds above 0"),
        ({"percentile": 101}, "'percentile' is 101; allowed: a number above 0 and at most 100"),
        ({"bound_s": 0}, "'bound_s' is 0; allowed: a number above 0"),
        ({"transport": "grpc"}, "'transport' is 'grpc'; allowed: 'in_process', 'http'"),
        ({"queries": 0}, "'queries' is 0; allowed: an integer of at least 1"),
        ({"epochs": 3}, "unknown key 'epochs'"),
        (
            {"dataset_kwargs": {"shape": (15,), "classes": 3, "train": 8, "test": 40}},
            "got shape (15,), expected float32",
        ),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    fixed = {**FIXED, **changes}
    with pytest.raises((RecipeError, ShapeError)) as caught:
        execute(Recipe.make(fixed, {"framework": "reference"}, METRICS), out=tmp_path, quiet=True)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_recipe_is_checked_without_running_it(deep5: Command) -> None:
    answer = deep5("check", NAME)
    assert answer.status == 0
    assert "5000 requests would be made in the scenario server, at 100, 200, 400, 800, 1600 queries/s" in answer.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", NAME, "--ranks", "2"), "serves a network and trains nothing; allowed: one process"),
        (("run", NAME, "--set", "rate=4"), "'rate' is fixed by the recipe"),
        (("study", NAME, "--vary", "max_batch=1,8"), "trains nothing; allowed: a recipe that trains a network"),
        (("compare", NAME, "--frameworks", "pytorch,jax"), "itself times the rates of a load"),
    ],
)
def test_what_does_not_fit_is_refused(deep5: Command, words: tuple[str, ...], message: str) -> None:
    answer = deep5(*words)
    assert answer.status == 2
    assert message in answer.err


# Metrics


@pytest.mark.parametrize(
    "metric",
    [d5.FailedRequests(), d5.Goodput(0.1), d5.HighestRate(0.1), d5.LatencyPercentile(), d5.RequestThroughput()],
    ids=str,
)
def test_what_a_metric_says_of_itself(metric: Metric) -> None:
    assert _scope(metric).startswith(("On the clock:", "Nothing is on a clock"))
    fresh = metric.observer()
    assert (fresh.samples(), fresh.value()) == ([], None)
    assert fresh.missing() == "no load was served; the metric is for recipes with the key 'scenario'"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: d5.LatencyPercentile(0), "LatencyPercentile: got 0; allowed: above 0 and at most 100"),
        (lambda: d5.Goodput(0), "Goodput: got bound_s=0; allowed: seconds above 0"),
        (lambda: d5.HighestRate("x"), "HighestRate: got bound_s='x'; allowed: seconds above 0"),
        (lambda: d5.Goodput(1, rate=0), "Goodput: got rate=0; allowed: queries per second above 0"),
        (lambda: d5.HighestRate(1, 101), "HighestRate: got 101; allowed: above 0 and at most 100"),
    ],
)
def test_a_metric_without_sense_is_refused(make: Callable[[], Metric], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        make()


def test_queries_of_several_samples_count_as_a_whole() -> None:
    plan = ServingPlan(scenario="multi_stream", queries=2, samples_per_query=2)
    ends = (0.1, 0.3, 0.2, 0.2)
    rows = tuple(
        Request(request=place, query=place // 2, phase=0, sample=0, scheduled_s=0.0, last_s=last_s)
        for place, last_s in enumerate(ends)
    )
    load = ServedLoad(plan=plan, requests=rows, begins_s=(0.0,))
    found = {}
    for metric in (d5.Goodput(0.25), d5.LatencyPercentile(50), d5.LatencyPercentile(99), d5.RequestThroughput()):
        observer = metric.observer()
        observer.after_serving(load)
        found[str(metric)] = observer.value()
    assert list(found.values()) == [pytest.approx(2 / 0.3), 0.2, 0.3, pytest.approx(4 / 0.3)]
