"""`AsynchronousScheme`: the base of schemes whose ranks send gradients to a server, each at its own pace."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from deep5.core.communicator import TIMEOUT_S, Communicator
from deep5.core.errors import Unsupported, UsageError
from deep5.core.events import StepInfo
from deep5.core.tensors import Array, Arrays
from deep5.distributed.schemes.server import DONE, HELLO, OVER, PUSH, TAG, TICK, WAIT, Server
from deep5.distributed.schemes.server_memory import Block
from deep5.distributed.schemes.server_scheme import SchemeHalves, ServedOptimizer
from deep5.distributed.schemes.shared_executor import owns_step
from deep5.training.accumulation import accumulated_step, batch_layout
from deep5.training.optimizer import RuleOptimizer

__all__ = ["AsynchronousScheme"]

# State entries of the root that any number of resuming ranks uses.
_SERVER = "server/"


class AsynchronousScheme(ServedOptimizer):
    """A rank sends the gradient of its samples to the server as soon as it is computed, and continues with the reply.

    Every rank takes at least one step of each epoch; their number and pace may differ between ranks.

    Args:
        root: The rank that runs the server; it computes gradients like all others.
        timeout_s: See `DistributedOptimizer`; also the longest permitted silence of a rank.
    """

    lockstep: ClassVar[bool] = False
    accumulates: ClassVar[bool] = True

    def __init__(self, root: int = 0, *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(root, verify_every=0, timeout_s=timeout_s)
        self._server: Server | None = None
        self._link: Communicator | None = None
        self._served_epoch: int | None = None
        self._staleness: Counter[int] = Counter()
        self._last_staleness: int | None = None
        self._held_ns = self._version = 0
        self._updates: int | None = None

    @property
    @abstractmethod
    def _ahead(self) -> int | None:
        """By how many steps a rank may lead the slowest; None: any number."""

    @property
    def staleness(self) -> Counter[int]:
        """Counts this rank's applied gradients by staleness: the updates since their parameters."""
        return self._staleness

    @property
    def last_staleness(self) -> int | None:
        """Staleness of the last step's gradient; None without a step, or if the step had no sample."""
        return self._last_staleness

    @property
    def held_s(self) -> float:
        """Seconds that this rank has waited for slower ones so far."""
        return self._held_ns / 1e9

    @property
    def server(self) -> Server | None:
        """The server that makes the updates; None on ranks other than the root, and with one rank."""
        return self._server

    def _prepare(self) -> None:
        super()._prepare()
        optimizer, name = self.optimizer, type(self).__name__
        if owns_step(optimizer):
            raise Unsupported(
                f"{name} applies gradients as they come, each of one rank's samples at that rank's parameters, and "
                f"{type(optimizer).__name__} owns its step, in which all gradients are of one loss; allowed: an update "
                "rule, such as d5.Momentum(); remedy: AllReduce, or a scheme that averages parameters"
            )
        if not isinstance(optimizer, RuleOptimizer):
            raise Unsupported(
                f"{name} applies every gradient where its server is, by the kernel of an update rule; got "
                f"{type(optimizer).__name__}, which makes its updates in a framework's memory, of that framework's own "
                "gradients; allowed: an update rule, such as d5.Momentum(); remedy: ParameterServer takes both"
            )
        if optimizer.pipeline.dynamic:
            raise Unsupported(
                f"{name}: got loss_scale='dynamic'; allowed: a number: a gradient arrives when the scale may be "
                "another one than it was computed with"
            )

    def _bound(self) -> None:
        self.close()
        self._server, self._served_epoch, self._updates = None, None, None
        self._staleness, self._last_staleness, self._held_ns = Counter(), None, 0
        if self._memory is None:
            return
        # A separate communicator, so that nothing comes between its messages.
        self._link = link = self.communicator.split(0)
        self._counted = (link.sent_bytes, link.messages, link.waited_ns)
        self._sent, self._newest = Block(self.trained), Block(self.trained)
        if self.serves:
            self._server = self._make_server(link)
            weakref.finalize(self, self._server.close)

    def _make_server(self, link: Communicator) -> Server:
        optimizer: Any = self.optimizer
        return Server(link, self.memory, _Halves(optimizer), bound=self._ahead, timeout_s=self.timeout_s)

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Backward, the gradient to the server, the newest parameters back; see `DistributedOptimizer.step`."""
        if self._without_samples(info):
            outputs = self.executor.inference(inputs)
            self._push(TICK, info)
            return outputs
        outputs = self.first_half(inputs, info)
        self.apply(self.gradients(), info)
        return outputs

    def accumulated_step(self, batches: Sequence[Arrays | None], info: StepInfo) -> Arrays:
        """One gradient from several micro-batches of this rank; see `DistributedOptimizer.accumulated_step`."""
        own = [batch for batch in batches if batch is not None]
        if self._memory is None:
            optimizer: Any = self.optimizer
            outputs: Arrays = optimizer.accumulated_step(own, info)
            return outputs
        if self._without_samples(info):
            return self.step(own[0], info)
        self._layout = layout = batch_layout(self.executor.network, self.__dict__.get("_layout"))
        return accumulated_step(SchemeHalves(self), self.executor, own, info, layout)

    def first_half(
        self,
        inputs: Arrays,
        info: StepInfo,
        on_gradient: Callable[[str, Array], None] | None = None,
        *,
        accumulate: bool = False,
        loss_scale: float = 1.0,
    ) -> Arrays:
        """Forward and backward at the parameters that this rank received; see `TrainStep.backprop`."""
        optimizer: Any = self.optimizer
        scale = loss_scale * (optimizer.pipeline.loss_scale or 1.0)
        return self.gradient(inputs, info, on_gradient, accumulate=accumulate, loss_scale=scale)

    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        """Send this rank's gradients and receive the newest parameters."""
        self._sent.put(gradients)
        self._push(PUSH, info)

    def _without_samples(self, info: StepInfo) -> bool:
        """Begin an epoch if this step is its first; return whether this rank has no sample in it."""
        if info.epoch != self._served_epoch:
            self.settle()
            self._begin(info)
        return info.global_batch_size > 0 and not info.batch_size

    def _begin(self, info: StepInfo) -> None:
        """The first step of an epoch: this rank takes the server's parameters, whatever it had."""
        if self._server is not None:
            if self._updates is None:
                # One rank that trained before has made this many updates.
                self._updates = self._server.updates = info.step
            self._version = self._server.begin(info)
            self.memory.block.write(self.executor)
        else:
            self._ask(HELLO, info)
        self._served_epoch = info.epoch

    def _push(self, kind: int, info: StepInfo) -> None:
        if self._server is not None:
            gradients, waited_ns = self._sent if kind == PUSH else None, self._server.waited_ns
            self._version, staleness, held_ns = self._server.push(gradients, self._version, info, self._newest)
            self.communicator.waited_ns += self._server.waited_ns - waited_ns
            self._newest.write(self.executor)
        else:
            staleness, held_ns = self._ask(kind, info)
        self._held_ns += held_ns
        self._last_staleness = staleness if kind == PUSH else None
        if kind == PUSH:
            self._staleness[staleness] += 1
        self._count()

    def _ask(self, kind: int, info: StepInfo) -> tuple[int, int]:
        """Send a message to the server and receive the parameters of its answer."""
        sent, newest, link = self._sent, self._newest, self._link
        if link is None:
            raise UsageError(f"{type(self).__name__} is not bound to an executor; remedy: call bind(executor) first")
        sent.head[:4] = kind, self._version, info.epoch, info.batch_size
        link.send(sent.memory, self.root, tag=TAG, timeout_s=self.timeout_s)
        while True:
            link.receive(newest.memory, self.root, tag=TAG, timeout_s=self.timeout_s)
            answer, version, staleness, held_ns = (int(number) for number in newest.head[:4])
            # A rank that has ended its epoch waits for the last rank.
            if answer != WAIT and (kind != DONE or answer == OVER):
                break
        newest.write(self.executor)
        self._version = version
        return staleness, held_ns

    def settle(self) -> None:
        """End this rank's epoch: return when all gradients of all ranks are applied; called by every rank.

        The executor then holds the server's parameters. The next step begins an epoch.

        Raises:
            CommunicationError: A rank was lost.
        """
        if self._served_epoch is None:
            return
        self._served_epoch = None
        if self._server is not None:
            self._server.finish()
            self.memory.block.write(self.executor)
        else:
            self._ask(DONE, StepInfo())
        self._count()

    def close(self) -> None:
        """End the server's thread, if it runs."""
        if self._server is not None:
            self._server.close()

    def average_parameters(self) -> None:
        """Copy the server's parameters to every rank; called by every rank."""
        if self._memory is not None:
            self.share_out()

    def _count(self) -> None:
        """Add the traffic to the counters of the ranks' own communicator."""
        link, communicator = self._link, self.communicator
        if link is None:
            return
        now = (link.sent_bytes, link.messages, link.waited_ns)
        sent_bytes, messages, waited_ns = (new - old for new, old in zip(now, self._counted, strict=True))
        self._counted = now
        communicator.sent_bytes += sent_bytes
        communicator.messages += messages
        # The root does not wait while the server's thread waits; `_push` counts the root's own waits.
        communicator.waited_ns += 0 if self.serves else waited_ns

    def set_hyper(self, name: str, value: float) -> None:
        """Set a hyperparameter: updates use the root's; see `RuleOptimizer.set_hyper`.

        Raises:
            Unsupported: The loss scale, because gradients in flight already include it.
        """
        self._set(name, lambda optimizer: optimizer.set_hyper(name, value))

    def set_parameter(self, name: str, value: float, match: Callable[[str], bool] | None = None) -> None:
        """Like `set_hyper`, for all parameters or some; see `RuleOptimizer.set_parameter`."""
        self._set(name, lambda optimizer: optimizer.set_parameter(name, value, match))

    def _set(self, name: str, change: Callable[[Any], None]) -> None:
        if name == "loss_scale" and self._memory is not None:
            raise Unsupported(
                f"{type(self).__name__}: the loss scale cannot change: gradients in flight were computed with the "
                "previous one"
            )
        if self._server is None:
            change(self.optimizer)
            return
        with self._server.lock:
            change(self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """The root's holds the server's parameters and the rule's state; those of other ranks hold neither."""
        if self._server is None:
            return super().state_dict()
        with self._server.lock:
            parameters, updates = self._server.snapshot()
            kept = {f"{_SERVER}parameters/{name}": value for name, value in parameters.items()}
            return {**super().state_dict(), **kept, f"{_SERVER}updates": updates}

    def state_views(self) -> dict[str, Any]:
        """Like `state_dict`: the live memory is the server's."""
        return self.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`: the root's parameters are the server's; other ranks get them at their next step."""
        own = {name.removeprefix(_SERVER): value for name, value in state.items() if name.startswith(_SERVER)}
        rest = {name: value for name, value in state.items() if not name.startswith(_SERVER)}
        parameters = {name.removeprefix("parameters/"): value for name, value in own.items() if name != "updates"}
        if parameters and (self.serves or self._memory is None):
            block = Block(self.trained)
            block.put(parameters)
            block.write(self.executor)
        super().load_state_dict(rest)
        if self._server is not None:
            self._updates = None
            if "updates" in own:
                self._updates = self._server.updates = int(own["updates"])


class _Halves:
    """The optimizer's second half, looked up on every call, because `set_parameter` may replace it."""

    def __init__(self, optimizer: RuleOptimizer) -> None:
        self._optimizer: Any = optimizer

    def backprop(self, inputs: Arrays, info: StepInfo) -> None:
        self._optimizer.halves.backprop(inputs, info)

    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        self._optimizer.halves.apply(gradients, info)

    def cancel(self) -> None:
        self._optimizer.halves.cancel()
