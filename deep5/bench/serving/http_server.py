"""A server for one model by KServe's protocol, version 2, over HTTP: `deep5 serve`.

Needs the extra `serving`: Starlette routes the requests, and uvicorn serves them.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deep5.bench.serving.protocol import HEADER, RequestError, decode_request, encode_response, tensor_document
from deep5.bench.serving.records import OK
from deep5.bench.serving.system import Answer, BatchServer
from deep5.core.errors import OutputError, UsageError
from deep5.core.plugins import missing_dependency
from deep5.core.quantities import size
from deep5.core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from deep5.bench.serving.model import ServedModel

__all__ = ["LOOPBACK", "Limits", "application", "serve"]

LOOPBACK = "127.0.0.1"
"""The default address: only processes of this machine reach it."""

_VERSION = "1"
_EXTENSIONS = ["binary_tensor_data"]
# Names by which a client of the same machine addresses the server; another name is a page of another site.
_OWN_NAMES = frozenset(("127.0.0.1", "localhost", "::1"))
# How much of a body above the limit is read, in multiples of the limit.
_READ = 4
# Time for requests in progress at the end.
_GRACE_S = 5


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server accepts.

    Attributes:
        body_bytes: Most bytes of a request's body.
        waiting: Most samples that wait for an answer.
        timeout_s: Longest time to an answer.
    """

    body_bytes: int = 64 << 20
    waiting: int = 4096
    timeout_s: float = 60.0


class _Refused(Exception):
    """A request that is answered with an error document."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Service:
    """Answers the requests of the protocol.

    Args:
        model: The model.
        batches: Runs its samples in batches.
        limits: What is accepted.
        names: Allowed names in the header `Host`; None: any.
    """

    def __init__(self, model: ServedModel, batches: BatchServer, limits: Limits, names: frozenset[str] | None) -> None:
        self._model, self._batches, self._limits, self._names = model, batches, limits, names
        self._waiting = 0
        self.answered = 0

    def guarded(self, handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """A handler whose errors are error documents."""
        from starlette.responses import JSONResponse

        async def answer(request: Request) -> Response:
            try:
                if self._names is not None and request.url.hostname not in self._names:
                    raise _Refused(400, f"the header Host names {request.url.hostname!r:.80}; allowed: 127.0.0.1")
                return await handle(request)
            except _Refused as error:
                return JSONResponse({"error": str(error)}, error.status)
            except RequestError as error:
                return JSONResponse({"error": str(error)}, 400)
            except UsageError as error:
                return JSONResponse({"error": str(error)}, 500)
            except ValueError as error:  # a header Host that is no name
                return JSONResponse({"error": str(error)[:200]}, 400)

        return answer

    async def health(self, request: Request) -> Response:
        """Whether the server is alive and ready: it is, once it answers."""
        from starlette.responses import JSONResponse

        return JSONResponse({"live" if request.url.path.endswith("live") else "ready": True})

    async def server(self, request: Request) -> Response:
        """Metadata of the server."""
        from starlette.responses import JSONResponse

        return JSONResponse({"name": "deep5", "version": __version__, "extensions": _EXTENSIONS})

    async def model(self, request: Request) -> Response:
        """Metadata of the model."""
        from starlette.responses import JSONResponse

        self._named(request)
        model = self._model
        return JSONResponse(
            {
                "name": model.name,
                "versions": [_VERSION],
                "platform": "deep5",
                "inputs": [tensor_document(name, spec) for name, spec in model.inputs.items()],
                "outputs": [tensor_document(name, spec) for name, spec in model.outputs.items()],
            }
        )

    async def model_ready(self, request: Request) -> Response:
        """Whether the model is ready."""
        from starlette.responses import JSONResponse

        self._named(request)
        return JSONResponse({"name": self._model.name, "ready": True})

    async def infer(self, request: Request) -> Response:
        """Inference: the samples of a request join the batches."""
        from starlette.responses import Response

        self._named(request)
        if request.headers.get("content-encoding", "identity") != "identity":
            raise _Refused(400, "the body is compressed; allowed: no Content-Encoding")
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                body = await self._body(request)
        except TimeoutError as error:
            raise _Refused(408, f"the body did not end within {self._limits.timeout_s:g} s") from error
        inference = decode_request(body, request.headers.get(HEADER), self._model.inputs, self._model.outputs)
        count = len(inference.rows)
        if (fault := next(filter(None, map(self._model.unknown_element, inference.rows)), None)) is not None:
            raise _Refused(400, fault)
        if self._waiting + count > self._limits.waiting:
            raise _Refused(
                503, f"{self._waiting} samples wait, and {count} came; allowed: {self._limits.waiting} at a time"
            )
        self._waiting += count
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                answers = await asyncio.gather(*map(self._asked, inference.rows))
        except TimeoutError as error:
            raise _Refused(504, f"no answer within {self._limits.timeout_s:g} s") from error
        finally:
            self._waiting -= count
        failed = next((answer for answer in answers if answer.status != OK), None)
        if failed is not None:
            raise _Refused(500, failed.status)
        about = {
            "batch": max(answer.batch or 0 for answer in answers),
            "started_ns": round(1e9 * min(answer.started_s or 0.0 for answer in answers)),
        }
        content, length = encode_response(self._model.name, inference, [each.outputs for each in answers], about)
        self.answered += 1
        if length is None:
            return Response(content, media_type="application/json")
        return Response(content, headers={HEADER: str(length)}, media_type="application/octet-stream")

    async def _asked(self, row: Any) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def settle(answer: Answer) -> None:
            if not future.done():  # it is after a timeout
                future.set_result(answer)

        def done(answer: Answer) -> None:
            with suppress(RuntimeError):  # the loop is closed, and no request waits
                loop.call_soon_threadsafe(settle, answer)

        self._batches.submit(row, done)
        return await future

    async def _body(self, request: Request) -> bytes:
        """The body; of one above the limit, nothing is kept, and no more than four times the limit is read.

        A client that still sends when the connection is closed sees a broken connection, and not the error.
        """
        most = self._limits.body_bytes
        parts, length = [], 0
        async for part in request.stream():
            length += len(part)
            if length <= most:
                parts.append(part)
            else:
                parts.clear()
            if length > _READ * most:
                break
        if length > most:
            raise _Refused(413, f"the body has {size(length)} or more; allowed: {size(most)}; remedy: --max-body")
        return b"".join(parts)

    def _named(self, request: Request) -> None:
        name, version = request.path_params["name"], request.path_params.get("version", _VERSION)
        if name != self._model.name or version != _VERSION:
            raise _Refused(
                404, f"unknown model {name!r:.80} of version {version!r:.20}; allowed: {self._model.name!r}, version 1"
            )


def application(
    model: ServedModel, batches: BatchServer, limits: Limits | None = None, *, own_names_only: bool = True
) -> Starlette:
    """The application: an ASGI app.

    Args:
        model: The model.
        batches: Runs its samples in batches.
        limits: What is accepted; None: the defaults.
        own_names_only: Whether requests must address this machine as such, so that a page of another site, whose name
            leads here, cannot use the server.

    Raises:
        MissingDependency: Starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ModuleNotFoundError as error:
        raise missing_dependency("a server", error) from error
    service = _Service(model, batches, limits or Limits(), _OWN_NAMES if own_names_only else None)
    one = "/v2/models/{name}"
    paths: list[tuple[str, Any, str]] = [
        ("/v2", service.server, "GET"),
        ("/v2/health/live", service.health, "GET"),
        ("/v2/health/ready", service.health, "GET"),
    ]
    for path in (one, one + "/versions/{version}"):
        paths += [
            (path, service.model, "GET"),
            (f"{path}/ready", service.model_ready, "GET"),
            (f"{path}/infer", service.infer, "POST"),
        ]
    routes = [Route(path, service.guarded(handle), methods=[method]) for path, handle, method in paths]

    async def refused(request: Request, error: Any) -> Response:
        said = (
            f"{request.method} of {request.url.path!r:.100}; allowed: GET of /v2, /v2/health/live, /v2/health/ready, "
        )
        said += f"{one} and {one}/ready, POST to {one}/infer"
        return JSONResponse({"error": said}, error.status_code)

    app = Starlette(routes=routes, exception_handlers={404: refused, 405: refused})
    app.state.service = service
    return app


def serve(
    app: Any, *, host: str = LOOPBACK, port: int = 0, on_start: Callable[[str, int], None] = lambda host, port: None
) -> int:
    """Serve an application until SIGINT or SIGTERM; requests in progress are then answered, within 5 s.

    Args:
        app: The result of `application`.
        host: Address to listen at.
        port: Port; 0: a free one.
        on_start: Called with address and port when clients can connect.

    Returns:
        Number of answered requests for inference.

    Raises:
        MissingDependency: Uvicorn is not installed.
        OutputError: The address is not free, or not of this machine.
    """
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise missing_dependency("a server", error) from error

    class Server(uvicorn.Server):
        """Ends at a signal without passing it on: a server that was stopped has not failed."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._stop)
            try:
                yield
            finally:
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.remove_signal_handler(number)

        def _stop(self) -> None:
            self.force_exit, self.should_exit = self.should_exit, True

    with _listening(host, port) as listener:
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", server_header=False, loop="asyncio",
            timeout_graceful_shutdown=_GRACE_S, ws="none",
        )  # fmt: skip

        async def run() -> None:
            server = Server(config)
            serving = asyncio.create_task(server.serve([listener]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)
            if server.started:
                on_start(host, listener.getsockname()[1])
            await serving

        asyncio.run(run())
    return int(app.state.service.answered)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol by name: only then asyncio sends small answers at once (TCP_NODELAY), and not 40 ms later.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            what, remedy = "a free port of this machine", "--port 0"
            if isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
                what, remedy = "an address of this machine", f"--host {LOOPBACK}"
            raise OutputError(
                f"cannot listen at {host}, port {port}: {reason}; allowed: {what}; remedy: {remedy}"
            ) from error
        yield listener
    finally:
        listener.close()
