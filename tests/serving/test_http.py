"""`deep5 serve` with a real client, and loads over HTTP: also against a server that is killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from command import Command
from deep5.audit import audit
from deep5.bench.serving import http_server
from deep5.bench.serving.http_client import HTTPSystem, ServerProcess
from deep5.bench.serving.model import served_network
from deep5.bench.serving.records import OK, REQUESTS, read_requests
from deep5.bench.serving.system import Answer
from deep5.core.errors import Deep5Error, MissingDependency, RecipeError, RunFailed
from deep5.core.python_child import python_command
from deep5.recipe.recipe import Recipe
from deep5.results.result import load
from deep5.results.store import result_folders
from deep5.run.execute import execute

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")
pytestmark = pytest.mark.usefixtures("warm")

SHAPE = (6,)
FIXED: dict[str, Any] = {
    "scenario": "server",
    "queries": 40,
    "rate": 100,
    "bound_s": 0.5,
    "transport": "http",
    "model": "mlp",
    "model_kwargs": {"features": 6, "hidden": 5, "classes": 3},
    "dataset": "synthetic",
    "dataset_kwargs": {"shape": SHAPE, "classes": 3, "train": 8, "test": 40},
}
MUTABLE: dict[str, Any] = {"framework": "reference", "max_batch": 4, "deadline_s": 0.002, "seed": 3, "timeout_s": 20.0}
METRICS: list[Any] = [(d5.FailedRequests(), 0), (d5.LatencyPercentile(99), None), (d5.Goodput(0.5), None)]


def network() -> d5.Network:
    return served_network(d5.networks.mlp(features=6, hidden=5, classes=3, seed=1))


def started(*options: str, source: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "deep5", "serve", source, "--port", "0", "--json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def address(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate(timeout=20)[1])
    found: dict[str, str] = json.loads(line)
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of an ONNX file."""
    path = tmp_path_factory.mktemp("served") / "small.onnx"
    network().save(path)
    process = started(
        "--framework", "reference", "--max-batch", "4", "--deadline", "0.001", "--max-body", "1", "--waiting", "16",
        "--timeout", "6",
        source=str(path),
    )  # fmt: skip
    try:
        found = address(process)
        assert (found["model"], found["framework"]) == ("small", "reference")
        yield found["url"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0, "a server that was stopped has not failed"
    finally:
        process.kill()
        process.communicate()


def asked(url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Status and JSON of a request."""
    request = urllib.request.Request(url, body, headers or {})  # noqa: S310 - an address of this machine
    try:
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_health_and_metadata(server: str) -> None:
    assert asked(f"{server}/v2/health/live") == (200, {"live": True})
    assert asked(f"{server}/v2/health/ready") == (200, {"ready": True})
    status, about = asked(f"{server}/v2")
    assert (status, about["name"], about["extensions"]) == (200, "deep5", ["binary_tensor_data"])
    assert asked(f"{server}/v2/models/small") == (
        200,
        {
            "name": "small",
            "versions": ["1"],
            "platform": "deep5",
            "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 6]}],
            "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}],
        },
    )
    assert asked(f"{server}/v2/models/small/versions/1/ready") == (200, {"name": "small", "ready": True})


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("binary_out", [True, False, None], ids=["binary", "json", "default"])
@pytest.mark.parametrize("rows", [1, 3, 11])
def test_a_real_client_gets_the_bits_of_the_executor(
    server: str, binary_in: bool, binary_out: bool | None, rows: int
) -> None:
    http = pytest.importorskip("tritonclient.http")
    client = http.InferenceServerClient(server.removeprefix("http://"))
    try:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("small")
        assert client.get_server_metadata()["name"] == "deep5"
        assert client.get_model_metadata("small")["outputs"][0]["name"] == "logits"
        batch = np.random.default_rng(rows).normal(size=(rows, 6)).astype(np.float32)
        tensor = http.InferInput("input", list(batch.shape), "FP32")
        tensor.set_data_from_numpy(batch, binary_data=binary_in)
        outputs = None if binary_out is None else [http.InferRequestedOutput("logits", binary_data=binary_out)]
        answer = client.infer("small", [tensor], outputs=outputs, request_id="42")
        assert answer.get_response()["id"] == "42"
        found = answer.as_numpy("logits")
    finally:
        client.close()
    executor = d5.framework("reference").executor(network())
    # Batches are padded, and a product may add in another order for another number of rows: the bits are those of the
    # executor for one of the sizes that the server runs, row by row.
    for place in range(rows):
        possible = {
            d5.to_numpy(executor.inference({"input": np.repeat(batch[place : place + 1], size, axis=0)})["logits"])[
                at
            ].tobytes()
            for size in (1, 2, 4)
            for at in range(size)
        }
        assert found[place].tobytes() in possible


def test_clients_at_once_get_their_own_answers(server: str) -> None:
    executor = d5.framework("reference").executor(network())
    found: dict[int, list[float]] = {}

    def ask(number: int) -> None:
        data = [float(number)] * 6
        body = {"inputs": [{"name": "input", "shape": [1, 6], "datatype": "FP32", "data": data}]}
        _, answer = asked(f"{server}/v2/models/small/infer", json.dumps(body).encode())
        found[number] = answer["outputs"][0]["data"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for number in range(12):
        expected = d5.to_numpy(executor.inference({"input": np.full((1, 6), number, np.float32)})["logits"])[0]
        np.testing.assert_allclose(found[number], expected, rtol=1e-5, atol=1e-5)  # in another batch: a few roundings


def body_of(**changes: Any) -> bytes:
    tensor = {"name": "input", "shape": [1, 6], "datatype": "FP32", "data": [0.0] * 6, **changes}
    return json.dumps({"inputs": [tensor]}).encode()


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "message"),
    [
        ("/v2/models/small/infer", body_of(shape=[1, 7], data=[0.0] * 7), {}, 400, "got shape (7,), expected"),
        ("/v2/models/small/infer", body_of(datatype="FP64"), {}, 400, "has the datatype 'FP64'; allowed: 'FP32'"),
        ("/v2/models/small/infer", b"{", {}, 400, "the body is no JSON"),
        ("/v2/models/small/infer", body_of(), {"Content-Encoding": "gzip"}, 400, "the body is compressed"),
        ("/v2/models/small/infer", b" " * (1 << 20) + b"{}", {}, 413, "allowed: 1 MiB; remedy: --max-body"),
        ("/v2/models/smal/infer", body_of(), {}, 404, "unknown model 'smal' of version '1'; allowed: 'small'"),
        ("/v2/models/small/versions/2/infer", body_of(), {}, 404, "of version '2'"),
        ("/v2/models/small/infer", None, {}, 405, "GET of '/v2/models/small/infer'; allowed: GET of /v2"),
        ("/v3", None, {}, 404, "GET of '/v3'; allowed: GET of /v2"),
        ("/v2", None, {"Host": "evil.example"}, 400, "the header Host names 'evil.example'; allowed: 127.0.0.1"),
        ("/v2/models/small/infer", body_of(shape=[17, 6], data=[0.0] * 102), {}, 503, "and 17 came; allowed: 16"),
    ],
)  # fmt: skip
def test_a_bad_request_gets_an_error_document(
    server: str, path: str, body: bytes | None, headers: dict[str, str], status: int, message: str
) -> None:
    found = asked(f"{server}{path}", body, headers)
    assert found[0] == status
    assert message in found[1]["error"]
    assert asked(f"{server}/v2/health/live")[0] == 200, "the server lives on"


def test_a_body_without_a_length_is_read_no_further_than_the_limit(server: str) -> None:
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = f"POST /v2/models/small/infer HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        for _ in range(32):
            connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        answer = connection.recv(65536)
    assert b" 413 " in answer.splitlines()[0]


def test_a_body_that_does_not_end_is_not_waited_for(server: str) -> None:
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = f"POST /v2/models/small/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: 10\r\n\r\n123"
        connection.sendall(head.encode())
        assert b" 408 " in connection.recv(65536).splitlines()[0]


def test_a_client_that_leaves_does_no_harm(server: str) -> None:
    host, port = server.removeprefix("http://").split(":")
    for part in (b"", b"POST /v2/models/small/infer HTTP/1.1\r\n", b"\x00\xff\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(part)
    assert asked(f"{server}/v2/models/small/infer", body_of())[0] == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_cleanly(number: signal.Signals) -> None:
    process = started("--framework", "reference", source="digits_lenet")
    try:
        url = address(process)["url"]
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "", "")
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"{url}/v2", timeout=5)  # noqa: S310 - an address of this machine
    finally:
        process.kill()


def test_a_result_is_served_with_its_trained_network(tmp_path: Path) -> None:
    fixed = {
        "model": "mlp", "model_kwargs": FIXED["model_kwargs"], "dataset": "synthetic",
        "dataset_kwargs": FIXED["dataset_kwargs"], "epochs": 1, "batch_size": 4,
    }  # fmt: skip
    mutable = {"framework": "reference", "optimizer": "sgd", "optimizer_kwargs": {"lr": 0.5}}
    trained = execute(Recipe.make(fixed, mutable, [(d5.TrainingLoss(), None)], name="small"), out=tmp_path, quiet=True)
    process = started(source=str(trained.folder))
    try:
        found = address(process)
        assert (found["model"], found["framework"]) == ("small", "reference")
        _, answer = asked(f"{found['url']}/v2/models/small/infer", body_of(data=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    finally:
        process.kill()
        process.communicate()
    weights = d5.Network.from_onnx(trained.folder / "network.onnx").with_weights(trained.folder / "weights.safetensors")
    row = np.arange(1, 7, dtype=np.float32)[None]
    expected = d5.to_numpy(
        d5.framework("reference").executor(served_network(weights)).inference({"input": row})["logits"]
    )
    np.testing.assert_allclose(answer["outputs"][0]["data"], expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing.onnx",), "nothing.onnx"),
        (("overhead_trainer",), "overhead_trainer is a recipe without a network; allowed: a recipe with"),
        (("digits_lenet", "--deadline", "soon"), "'--deadline'"),
        (("digits_lenet", "--deadline", "-1"), "--deadline -1; allowed: seconds from 0 to 1e+06, such as 0.002"),
        (("digits_lenet", "--deadline", "nan"), "--deadline nan; allowed: seconds from 0"),
        (("digits_lenet", "--timeout", "0"), "--timeout 0; allowed: seconds above 0, to 1e+06, such as 60"),
        (("digits_lenet", "--name", "a/b"), "the model's name is 'a/b'; allowed: letters, digits, _, . and -"),
        (("digits_lenet", "--framework", "pytroch"), "unknown framework 'pytroch'"),
        (
            ("digits_lenet", "--framework", "reference", "--host", "203.0.113.7"),
            "cannot listen at 203.0.113.7, port 8000: Cannot assign requested address; allowed: an address of this "
            "machine; remedy: --host 127.0.0.1",
        ),
        (
            ("digits_lenet", "--framework", "reference", "--host", "host.invalid", "--port", "0"),
            "allowed: an address of this machine; remedy: --host 127.0.0.1",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(deep5: Command, words: tuple[str, ...], message: str) -> None:
    answer = deep5("serve", *words)
    assert answer.status == 2
    assert message in answer.err


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("starlette", lambda: http_server.application(None, None)),  # type: ignore[arg-type]
        ("uvicorn", lambda: http_server.serve(None)),
        ("httpx", lambda: HTTPSystem("http://127.0.0.1:1", "m", timeout_s=1.0)),
    ],
)
def test_a_missing_package_names_the_extra(
    package: str, use: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingDependency, match=rf"'{package}', which is not installed; remedy: pip install 'deep5\[serv"
    ):
        use()


# Loads


def recipe(**changes: Any) -> Recipe:
    mutable = {**MUTABLE, **{key: value for key, value in changes.items() if key in MUTABLE}}
    fixed = {**FIXED, **{key: value for key, value in changes.items() if key not in MUTABLE}}
    return Recipe.make(
        {key: each for key, each in fixed.items() if each is not None}, mutable, METRICS, name="over_http"
    )


@pytest.mark.parametrize("scenario", ["server", "single_stream", "multi_stream", "offline"])
def test_a_load_over_http_passes_the_audit(scenario: str, tmp_path: Path) -> None:
    rate = 100 if scenario == "server" else None
    result = execute(recipe(scenario=scenario, rate=rate), out=tmp_path, quiet=True)
    assert (result.status, result.accepted) == ("success", True)
    rows = read_requests(result.folder / REQUESTS)
    assert [row.request for row in rows] == list(range(320 if scenario == "multi_stream" else 40))
    assert all(row.started_s is not None and 1 <= (row.batch or 0) <= 4 for row in rows)
    answer = audit([result.folder])
    assert not answer.findings, answer.findings


def test_a_server_that_is_killed_under_load_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL in the middle of the load: the run ends soon, each request has a row, and the message says why."""

    class Killing(ServerProcess):
        def __init__(self, command: Any) -> None:
            super().__init__(command)
            threading.Timer(1.0, lambda: os.killpg(self.process.pid, signal.SIGKILL)).start()

    monkeypatch.setattr("deep5.bench.serving.http_client.ServerProcess", Killing)
    with pytest.raises(
        RunFailed, match=r"the server process was ended by SIGKILL; \d+ of 300 requests failed; what it"
    ):
        execute(recipe(queries=300, rate=100), out=tmp_path, quiet=True)
    (folder,) = result_folders(tmp_path)
    result = load(folder)
    rows = read_requests(folder / REQUESTS)
    assert [row.request for row in rows] == list(range(300))
    failed = [row for row in rows if row.status != OK]
    assert 0 < len(failed) < 300, "some were answered before"
    # The rest fails at once: none has waited for its timeout.
    assert all(row.status.startswith("the server process was ended by SIGKILL (") for row in failed)
    assert result.status == "failed"
    assert any(f"{len(failed)} of 300 requests failed" in reason for reason in result.reasons)
    assert result.metric("failed_requests") == len(failed)
    answer = audit([folder])
    assert not answer.findings, answer.findings


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    from deep5.run.server_process import serve_file

    with pytest.raises(Deep5Error, match=r"(?s)the server process ended with the status 1; it printed: .*nothing.onnx"):
        ServerProcess(python_command(serve_file, str(tmp_path / "nothing.onnx"), {}))
    with pytest.raises(Deep5Error, match=r"^the server did not start within 0\.2 s; it printed: nothing$"):
        ServerProcess([sys.executable, "-c", "import time; time.sleep(60)"], start_s=0.2)


def test_answers_that_cannot_be_read_are_failures() -> None:
    """Servers that are none of this protocol: they close, answer something else, or never."""
    for reply, expected in (
        (b"", "RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "the response cannot be read"),
        (b'HTTP/1.1 500 X\r\nContent-Length: 16\r\n\r\n{"error": "why"}', "HTTP 500: why"),
        (b"HTTP/1.1 502 X\r\nContent-Length: 3\r\n\r\nbad", "HTTP 502: bad"),
        (None, "ReadTimeout"),
    ):
        assert expected in answer_of(reply).status


def answer_of(reply: bytes | None) -> Answer:
    """What a client makes of a server's reply; None: there is none."""
    found: queue.Queue[Answer] = queue.Queue()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                if reply is None:
                    sleep(1.0)
                else:
                    connection.sendall(reply)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with HTTPSystem(address, "m", timeout_s=0.5) as client:
            client.submit(client.prepared([{"x": np.ones(2, np.float32)}])[0], found.put)
            result = found.get(timeout=20)
        thread.join(20)
    return result


def test_a_network_of_the_users_executor_needs_no_process(tmp_path: Path) -> None:
    mutable = {key: value for key, value in MUTABLE.items() if key != "framework"}

    def own(network: Any, *, device: Any, seed: int) -> Any:
        return d5.framework("reference").executor(network, device=device, seed=seed)

    with pytest.raises(RecipeError, match="'executor' is the recipe's own function, which the server's process cannot"):
        execute(Recipe.make(FIXED, {**mutable, "executor": own}, METRICS), out=tmp_path, quiet=True)
