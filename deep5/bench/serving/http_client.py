"""A server over HTTP as the system under test: the client of KServe's protocol, and the server's process."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from deep5.bench.serving.protocol import HEADER, decode_response, encode_request
from deep5.bench.serving.records import OK
from deep5.bench.serving.system import Answer, Done
from deep5.core.child_process import start
from deep5.core.errors import Deep5Error, UsageError, described
from deep5.core.plugins import missing_dependency

if TYPE_CHECKING:
    import numpy as np

__all__ = ["HTTPSystem", "ServerProcess"]

# Time for the server to load its framework and to warm up; time for it to end.
_START_S, _END_S = 300.0, 10.0
_MOST_SAID = 4000


class HTTPSystem:
    """A server of KServe's protocol as a system under test; requests are sent as soon as they are submitted.

    An event loop in a separate thread holds as many connections as there are requests in progress, so that a slow
    server does not delay the next request. A request's `started_s` is the server's reading of the monotonic clock,
    which all processes of a machine share.

    Args:
        address: For example `http://127.0.0.1:8000`.
        model: Name of the model.
        timeout_s: Longest time to an answer; then the request is a failure.
        ended: Returns how the server's process ended, or an empty string while it runs.

    Raises:
        MissingDependency: httpx is not installed.
    """

    def __init__(self, address: str, model: str, *, timeout_s: float, ended: Callable[[], str] = lambda: "") -> None:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise missing_dependency("a load over HTTP", error) from error
        self._path, self.ended = f"/v2/models/{model}/infer", ended
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)
        # Proxies of the environment are for other machines.
        self._client = httpx.AsyncClient(base_url=address, timeout=timeout_s, limits=limits, trust_env=False)
        self._loop = asyncio.new_event_loop()
        self._tasks = set[asyncio.Task[None]]()
        self._thread = threading.Thread(target=self._loop.run_forever, name="deep5 HTTP client", daemon=True)
        self._thread.start()

    @staticmethod
    def prepared(samples: Sequence[Mapping[str, np.ndarray]]) -> list[tuple[bytes, int]]:
        """The bodies of requests, so that none is encoded while the clock runs.

        Args:
            samples: Arrays by input.
        """
        return [encode_request(sample) for sample in samples]

    def submit(self, sample: tuple[bytes, int], done: Done) -> None:
        """Send a request.

        Args:
            sample: One of the `prepared` samples.
            done: As for `System.submit`.
        """
        self._loop.call_soon_threadsafe(self._begin, sample, done)

    def _begin(self, sample: tuple[bytes, int], done: Done) -> None:
        task = self._loop.create_task(self._ask(sample, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, sample: tuple[bytes, int], done: Done) -> None:
        body, length = sample
        try:
            response = await self._client.post(self._path, content=body, headers={HEADER: str(length)})
            done(_answer(response))
        except BaseException as error:
            # The operating system reports a lost connection before the end of the process.
            said = described(error)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)
            ended = self.ended()
            done(Answer(perf_counter(), f"{ended} ({said})" if ended else said))
            if isinstance(error, asyncio.CancelledError):
                raise

    def close(self) -> None:
        """Stop; requests in progress fail."""
        ended = asyncio.run_coroutine_threadsafe(self._finish(), self._loop)
        with suppress(TimeoutError):
            ended.result(_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _finish(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    def __enter__(self) -> HTTPSystem:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _answer(response: Any) -> Answer:
    last_s = perf_counter()
    if response.status_code != 200:
        return Answer(last_s, f"HTTP {response.status_code}: {_reason(response)}")
    try:
        arrays, about = decode_response(response.content, response.headers.get(HEADER))
        started_s, batch = about["started_ns"] / 1e9, int(about["batch"])
    except (UsageError, KeyError, TypeError, ValueError) as error:
        return Answer(last_s, f"the response cannot be read: {described(error)}")
    return Answer(last_s, OK, started_s, batch, outputs={name: array[0] for name, array in arrays.items()})


def _reason(response: Any) -> str:
    try:
        return str(response.json()["error"])[:500]
    except (ValueError, KeyError, TypeError):
        return str(response.text[:200])


class ServerProcess:
    """A server in a separate process, which ends with this one.

    Args:
        command: Program and arguments; it prints a JSON object with `url` and `model` on standard output once clients
            can connect.
        start_s: Longest time to that.

    Attributes:
        url: Address of the server.
        model: Name of its model.
        process: The process.

    Raises:
        Deep5Error: It ended, or did not start in time; the message holds what it printed.
    """

    def __init__(self, command: Sequence[str], *, start_s: float = _START_S) -> None:
        with tempfile.TemporaryFile() as said:
            reading, writing = os.pipe()
            try:
                with os.fdopen(writing, "wb") as output:
                    self.process: subprocess.Popen[bytes] = start(command, None, output, errors=said)
                line = self._first_line(reading, start_s)
            finally:
                os.close(reading)
            try:
                about = json.loads(line or "")
                self.url, self.model = str(about["url"]), str(about["model"])
            except (ValueError, KeyError, TypeError) as error:
                # One that closed its output needs a moment to end.
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.0 if line is None else _END_S)
                how = self.ended() or f"the server did not start within {start_s:g} s"
                self.close()
                said.seek(0)
                text = said.read().decode(errors="replace").strip()[-_MOST_SAID:]
                raise Deep5Error(f"{how}; it printed: {text or 'nothing'}") from error

    def _first_line(self, reading: int, start_s: float) -> bytes | None:
        """What the process prints up to the end of a line, or up to its end; None: too late."""
        found, deadline_s = b"", monotonic() + start_s
        while b"\n" not in found:
            left_s = max(deadline_s - monotonic(), 0.0)
            if not select.select([reading], [], [], left_s)[0]:
                return None
            part = os.read(reading, 65536)
            if not part:
                break
            found += part
        return found

    def ended(self) -> str:
        """How the process ended, in words; empty while it runs."""
        status = self.process.poll()
        if status is None:
            return ""
        if status < 0:
            return f"the server process was ended by {signal.Signals(-status).name}"
        return f"the server process ended with the status {status}"

    def close(self) -> None:
        """End the process, within 10 s."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
