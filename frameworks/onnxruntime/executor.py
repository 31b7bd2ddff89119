"""The executor of ONNX Runtime: sessions on the executor's memory, gradients by an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
from typing_extensions import override

from deep5.core.errors import Unsupported
from deep5.core.tensors import Arrays, Device
from deep5.frameworks.onnxruntime.numerics import NumericsFramework
from deep5.frameworks.onnxruntime.program import Program
from deep5.frameworks.onnxruntime.rewrite import rewritten
from deep5.frameworks.onnxruntime.short import check_short
from deep5.networks.network import Network
from deep5.training.gradient_executor import GradientExecutor, Run

__all__ = ["ONNXRuntimeExecutor"]


class ONNXRuntimeExecutor(GradientExecutor):
    """Runs a network in ONNX Runtime; created by `ONNXRuntime.executor`.

    As long as the parameters cannot change (none were returned, no training), inference sessions hold them as
    constants. Such a session runs faster, keeps a second copy of weights in another layout, and may round differently
    from a session that reads the executor's memory.

    Args:
        network: The network; it is not changed.
        framework: ONNX Runtime.
        device: A device that it supports.
        seed: The seed of noise only.
        profiles: A folder for the profiles of sessions; None: no profiles.

    Raises:
        Unsupported: Some nodes cannot run; the message gives the reason for each.

    Attributes:
        capabilities: None. Convolution and other operators exist only in float32; a float64 network runs if all of its
            operators do.
    """

    def __init__(
        self,
        network: Network,
        framework: NumericsFramework,
        *,
        device: Device,
        seed: int = 0,
        profiles: Path | None = None,
    ) -> None:
        _check_types(network)
        self._framework, self._profiles = framework, profiles
        # Whether only `_assign` can write to the parameters.
        self._fixed = True
        super().__init__(network, framework, device=device, seed=seed)
        check_short(self._forms.evaluation.nodes, device)

    def parameters(self) -> Arrays:
        """The live parameters; see `GradientExecutor.parameters`."""
        self._release()
        return super().parameters()

    def buffers(self) -> Arrays:
        """The live running statistics; see `GradientExecutor.buffers`."""
        self._release()
        return super().buffers()

    def settings(self) -> dict[str, Any]:
        """Threads, spinning, provider, TF32 and determinism as read back from the session."""
        session = self._session()
        options, provider = session.get_session_options(), session.get_providers()[0]
        return {
            "framework": self._framework.name,
            "version": onnxruntime.__version__,
            "device": str(self.device),
            "provider": provider,
            "threads": options.intra_op_num_threads,
            "spinning": options.get_session_config_entry("session.intra_op.allow_spinning") == "1",
            **self._dtype_settings(list(self._values.values())),
            "tf32": session.get_provider_options()[provider].get("use_tf32") == "1",
            "deterministic": options.use_deterministic_compute,
        }

    def _threads(self) -> int:
        return self._framework.threads

    @override
    def suited(self, network: Network) -> Network:
        return rewritten(network)

    def _assign(self, name: str, value: np.ndarray) -> None:
        if self._programs:
            self._release()  # a caller that writes after a call will write again
        super()._assign(name, value)

    def _release(self) -> None:
        """From now on, sessions read the parameters from the executor's memory."""
        if self._fixed:
            self._fixed = False
            self.discard_programs()

    @override
    def compile(self, network: Network, announced: Sequence[str]) -> Run:
        if network is not self._forms.evaluation:
            self._release()  # training, which writes running statistics
        return Program(
            network,
            self._values,
            announced,
            threads=self._framework.threads,
            device=self.device,
            fixed=self._fixed,
            numerics=self._framework.numerics,
            profiles=self._profiles,
        )

    def profiled(self, kind: str) -> list[Program]:
        """Remove and return the programs of one kind, `"forward"` or `"gradients"`, for their profiles."""
        return [cast(Program, self._programs.pop(key).run) for key in list(self._programs) if key[0] == kind]

    def _session(self) -> onnxruntime.InferenceSession:
        program = self._programs.get(("forward", False)) or self._forward(training=False)
        return cast(Program, program.run).session


def _check_types(network: Network) -> None:
    """Reject inputs and outputs of sub-byte dtypes, which ONNX Runtime cannot create from NumPy arrays."""
    for kind, specs in (("input", network.inputs), ("output", network.outputs)):
        for name, spec in specs.items():
            if spec.dtype.startswith(("float4", "float8", "int2", "int4", "uint2", "uint4")):
                raise Unsupported(
                    f"onnxruntime has no inputs or outputs of {spec.dtype}, which the {kind} {name!r} holds; allowed: "
                    "bool, numbers of 8 bits and more; remedy: a Cast, or framework 'reference'"
                )
