"""Edge cases of ranks: which rank gets which GPU, signals to ranks in threads, sizes that do not fit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from threading import enumerate as threads

import pytest

import deep5 as d5
from deep5.core.errors import RecipeError, Unsupported, UsageError
from deep5.distributed.communicators.threads import ThreadCommunicator, run_in_threads
from deep5.distributed.launch.device import rank_device, use_device
from ranks import mpi_version, under_mpi

# Settings of a launcher in the environment of the tests are not under test.
OWN = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "DEEP5_RANKS", "DEEP5_LAUNCH", "TORCHELASTIC_", "MASTER_")
ALONE = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MPI_LOCALRANKID", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}
TORCH = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
SLURM = {"SLURM_PROCID": "5", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8"}


@pytest.fixture(autouse=True)
def _not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(OWN) or name in ALONE:
            monkeypatch.delenv(name)


# Devices -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variables",
    [
        {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "3"},
        {**TORCH, "LOCAL_RANK": "3"},
        {**SLURM, "SLURM_LOCALID": "3"},
        {**MPICH, "MPI_LOCALRANKID": "3"},
    ],
    ids=["Open MPI", "torchrun", "srun", "MPICH"],
)
def test_cuda_is_a_processor_for_each_rank_of_a_machine(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(rank_device("cuda")) == "cuda:0"
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(rank_device("cuda")) == "cuda:3"
    # An explicit index selects that processor.
    assert str(rank_device("cuda:1")) == "cuda:1"
    assert str(rank_device(d5.GPUDevice())) == "cuda:0"
    assert str(rank_device("cpu")) == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert str(rank_device("cuda")) == "cuda:3"
    # Where a launcher shows each rank only its own processor, that one is the first.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert str(rank_device("cuda")) == "cuda:0"


@pytest.mark.parametrize("variables", [OPEN_MPI, TORCH, SLURM, MPICH], ids=["Open MPI", "torchrun", "srun", "MPICH"])
def test_a_launcher_that_does_not_say_which_rank_of_its_machine_is_told(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"does not report this rank's number on its machine; allowed: cuda:N"):
        rank_device("cuda")
    assert str(rank_device("cuda:0")) == "cuda:0"


def test_a_recipe_goes_by_it_and_a_processor_that_is_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from deep5.recipe.experiment import recipe_parts
    from deep5.recipe.recipe import load_recipe
    from deep5.run.assemble_executor import executor_factory

    for name, value in {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "97"}.items():
        monkeypatch.setenv(name, value)
    recipe = load_recipe("digits_lenet").at_size("smoke").with_settings({"framework": "pytorch", "device": "cuda"})
    _, _, build = executor_factory(recipe_parts(recipe))
    with pytest.raises(RecipeError, match="no device cuda:97 for pytorch here; allowed: cpu"):
        build(d5.networks.mlp(), 0)
    with pytest.raises(Unsupported, match="no device cuda:97 for NCCL here"):
        use_device("cuda")
    with pytest.raises(Unsupported, match="no device cpu for NCCL here"):
        use_device("cpu")


# Signals -------------------------------------------------------------------------------------------------------------

INTERRUPTED = """
import os, random, signal, threading
import numpy as np
from deep5.distributed.communicators.threads import run_in_threads

def work(communicator):
    value = np.ones(4)
    while True:
        communicator.all_reduce(value, op="max")

random.seed(0)
for _ in range(60):
    timer = threading.Timer(random.uniform(0, 0.02), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        try:
            run_in_threads(3, work, timeout_s=60)
        finally:
            timer.join()
    except KeyboardInterrupt:
        pass
print("left", [thread.name for thread in threading.enumerate() if thread.name.startswith("rank")])
"""


def test_signals_at_any_moment_leave_no_rank_behind() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "left []\n"), done.stderr


def test_what_interrupts_rank_0_is_what_is_raised() -> None:
    def work(communicator: ThreadCommunicator) -> None:
        if communicator.rank == 0:
            os.kill(os.getpid(), signal.SIGINT)
        raise KeyboardInterrupt("another rank was interrupted")

    def at_once(number: int, frame: object) -> None:
        raise KeyboardInterrupt("ended by a signal")

    before = signal.signal(signal.SIGINT, at_once)
    try:
        # Whichever was first: a signal reaches the first rank's thread, and the others only report that it had one.
        with pytest.raises(KeyboardInterrupt, match="ended by a signal"):
            run_in_threads(3, work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not [thread for thread in threads() if thread.name.startswith("rank-")]


def test_the_end_of_the_process_waits_for_ranks_that_are_still_at_it() -> None:
    program = """
    import time
    from deep5.distributed.communicators.threads import run_in_threads

    def work(communicator):
        time.sleep(1.5 * communicator.rank)
        print(communicator.rank, "is done", flush=True)

    run_in_threads(2, work, timeout_s=0.1)
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "CommunicationError: the ranks did not finish within 0.1 s" in done.stderr
    assert done.stdout == "0 is done\n1 is done\n"


# Sizes ---------------------------------------------------------------------------------------------------------------


def test_small_buffers_that_do_not_fit_are_told_by_the_rank_that_gets_too_much() -> None:
    if "Open MPI" not in mpi_version():
        pytest.skip("only Open MPI reports small buffers that do not fit")
    program = """
    import numpy as np
    from deep5.distributed.communicators.mpi import MPICommunicator
    from deep5.core.errors import CommunicationError

    communicator = MPICommunicator.world()
    try:
        communicator.all_reduce(np.ones(16 if communicator.rank == 0 else 8), timeout_s=5.0)
    except CommunicationError as error:
        print(error)
    """
    ended = under_mpi(program, 2)
    assert "all_reduce failed on rank 1: another rank's buffer has more bytes than this one's" in ended.output, ended
    assert "on buffers of the same size" in ended.output
