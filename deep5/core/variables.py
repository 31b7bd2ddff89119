"""The environment variables that deep5 reads or sets, with their meanings: the reference is made from this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["VARIABLES", "Variable", "known_variable"]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """An environment variable, or several whose names begin alike.

    Attributes:
        meaning: What deep5 does with it, in one sentence.
        unset: What holds without it.
        set_by: Who sets it, if not the user.
    """

    meaning: str
    unset: str = ""
    set_by: str = ""


_FILES = {
    "DEEP5_CACHE": Variable(
        meaning="Folder for what deep5 can make again: compiled code, calibrations, downloads, the index of results.",
        unset="`deep5` in XDG_CACHE_HOME",
    ),
    "XDG_CACHE_HOME": Variable(
        meaning="Folder of all programs' caches, for deep5's without DEEP5_CACHE.", unset="`~/.cache`"
    ),
    "DEEP5_DATA": Variable(
        meaning="Folder with your data sets, which deep5 searches before its downloads.",
        unset="only the downloads in the cache",
    ),
    "XDG_STATE_HOME": Variable(
        meaning="Folder with `deep5/cache.secret`, which authenticates compiled code in the cache.",
        unset="`~/.local/state`",
    ),
    "TMPDIR": Variable(
        meaning="Folder for temporary files; deep5 names it in the message if its disk is full.",
        unset="Python's choice, mostly `/tmp`",
    ),
    "TORCHINDUCTOR_CACHE_DIR": Variable(
        meaning="Folder of torch.compile's compiled code, for the framework `pytorch:compiled`.",
        unset="deep5 sets `torchinductor` in its cache",
    ),
}
_OUTPUT = {
    "NO_COLOR": Variable(meaning="Any value but the empty one: output without colors and styles."),
    "COLUMNS": Variable(
        meaning="Width of tables on standard output that is not a terminal.",
        unset="a row is one line of any length; 100 columns in `deep5 show`",
    ),
    "TERM": Variable(
        meaning="Type of the terminal: on `dumb` and `unknown`, lines replace progress bars.", set_by="the terminal"
    ),
    "_DEEP5_COMPLETE": Variable(
        meaning="`bash_source`, `zsh_source` or `fish_source`: deep5 prints the shell's script for completion.",
        set_by="you, in the shell's start file; later the script",
    ),
    "COMP_WORDS": Variable(meaning="The words of the line to complete.", set_by="the script for completion"),
    "COMP_CWORD": Variable(meaning="The number of the word to complete.", set_by="the script for completion"),
}
_COMPILERS = {
    "CC": Variable(
        meaning="C compiler for update rules, transforms and dropout masks.", unset="`cc`, `gcc` or `clang` on the path"
    ),
    "CXX": Variable(
        meaning="C++ compiler for operators in C++, and for `pytorch:compiled`.",
        unset="`c++`, `g++` or `clang++` on the path; `g++` for `pytorch:compiled`",
    ),
    "NVCC": Variable(meaning="CUDA compiler for operators in CUDA.", unset="`nvcc` on the path"),
    "CPATH": Variable(
        meaning="The compiler's folders of headers; files found there and included by an operator enter its hash."
    ),
    "CPLUS_INCLUDE_PATH": Variable(meaning="As CPATH, for C++."),
    "LC_ALL": Variable(
        meaning="Language of messages: `C` for compilers and git that deep5 starts.",
        set_by="deep5, for these processes",
    ),
    "GIT_OPTIONAL_LOCKS": Variable(
        meaning="`0`, so that reading deep5's commit does not disturb other git commands.",
        set_by="deep5, for that process",
    ),
}
_LIBRARIES = {
    "OMP_NUM_THREADS": Variable(
        meaning="Number of threads within an operator, on every framework, if the recipe sets none. Timed processes "
        "have the number of the comparison.",
        unset="one thread per physical core that the process may use",
    ),
    "MKL_NUM_THREADS": Variable(
        meaning="Number of threads of PyTorch; takes precedence over OMP_NUM_THREADS if the recipe sets none."
    ),
    "TF_NUM_INTRAOP_THREADS": Variable(
        meaning="Number of threads within an operator of TensorFlow; takes precedence over OMP_NUM_THREADS."
    ),
    "TF_NUM_INTEROP_THREADS": Variable(
        meaning="Number of TensorFlow's operators that run at the same time, if deep5 sets no number of threads."
    ),
    "PJRT_NPROC": Variable(
        meaning="Number of threads of JAX on a CPU; takes precedence over OMP_NUM_THREADS. deep5 sets it while JAX "
        "starts with another number."
    ),
    "OPENBLAS_NUM_THREADS": Variable(
        meaning="Number of threads of NumPy's products, for the reference; takes precedence over OMP_NUM_THREADS."
    ),
    "OPENBLAS_THREAD_TIMEOUT": Variable(
        meaning="How long OpenBLAS' threads spin before they sleep; recorded.",
        unset="`22` in timed processes, so that they do not sleep between two calls",
    ),
    "OMP_WAIT_POLICY": Variable(meaning="How OpenMP's threads wait; recorded with each timed process."),
    "GOMP_SPINCOUNT": Variable(meaning="How long threads of GCC's OpenMP spin; recorded with each timed process."),
    "KMP_BLOCKTIME": Variable(meaning="How long threads of Intel's OpenMP spin; recorded with each timed process."),
    "KMP_INIT_AT_FORK": Variable(
        meaning="Set when scikit-learn is loaded; not recorded, so that environments do not differ by it.",
        set_by="a library",
    ),
    "PYTHONHASHSEED": Variable(
        meaning="`0` in timed processes, so that sets and dicts have the same order in all.",
        set_by="deep5, for these processes",
    ),
    "TF_CPP_MIN_LOG_LEVEL": Variable(
        meaning="Log level of TensorFlow and JAX.", unset="deep5 sets `2`: only errors are printed"
    ),
    "KERAS_BACKEND": Variable(
        meaning="Back-end of Keras; deep5 needs `tensorflow` and refuses another one.",
        unset="deep5 sets `tensorflow` before it loads Keras",
    ),
    "XLA_FLAGS": Variable(
        meaning="Options of XLA; for a GPU, deep5 adds the one for deterministic kernels before JAX starts."
    ),
    "CUBLAS_WORKSPACE_CONFIG": Variable(
        meaning="Workspace of cuBLAS, on which bit-identical products of PyTorch depend.",
        unset="deep5 sets `:4096:8` for deterministic runs",
    ),
    "CUDA_MODULE_LOADING": Variable(
        meaning="When CUDA loads kernels; recorded, unless it has PyTorch's value `LAZY`.", set_by="you, or PyTorch"
    ),
    "MALLOC_MMAP_THRESHOLD_": Variable(
        meaning="Returns freed memory to the system while workspaces of operators are measured.",
        set_by="deep5, for that process",
    ),
    "MALLOC_TRIM_THRESHOLD_": Variable(meaning="As MALLOC_MMAP_THRESHOLD_.", set_by="deep5, for that process"),
}
_RANKS = {
    "DEEP5_LAUNCH": Variable(
        meaning="Launcher and number of ranks of a job that deep5 started, such as `mpiexec:4`.", set_by="deep5"
    ),
    "DEEP5_RANKS": Variable(
        meaning="Internal: folder in which the ranks of a job report to the process that watches them.", set_by="deep5"
    ),
    "OMPI_COMM_WORLD_RANK": Variable(meaning="Rank of this process.", set_by="Open MPI's mpiexec"),
    "OMPI_COMM_WORLD_SIZE": Variable(meaning="Number of ranks.", set_by="Open MPI's mpiexec"),
    "OMPI_COMM_WORLD_LOCAL_RANK": Variable(
        meaning="Rank on this machine, which selects the GPU.", set_by="Open MPI's mpiexec"
    ),
    "PMI_RANK": Variable(meaning="Rank of this process.", set_by="mpiexec of MPICH and Intel MPI"),
    "PMI_SIZE": Variable(meaning="Number of ranks.", set_by="mpiexec of MPICH and Intel MPI"),
    "MPI_LOCALRANKID": Variable(
        meaning="Rank on this machine, which selects the GPU.", set_by="mpiexec of MPICH and Intel MPI"
    ),
    "PMIX_RANK": Variable(
        meaning="Rank of this process; refused if it contradicts SLURM_PROCID.", set_by="srun with PMIx"
    ),
    "RANK": Variable(
        meaning="Rank of this process, together with WORLD_SIZE, MASTER_ADDR and MASTER_PORT.",
        set_by="torchrun, or another launcher of PyTorch's jobs",
    ),
    "WORLD_SIZE": Variable(meaning="Number of ranks.", set_by="as RANK"),
    "LOCAL_RANK": Variable(meaning="Rank on this machine, which selects the GPU.", set_by="as RANK"),
    "MASTER_ADDR": Variable(meaning="Address at which the ranks meet.", set_by="as RANK"),
    "MASTER_PORT": Variable(meaning="Port at which the ranks meet.", set_by="as RANK"),
    "TORCHELASTIC_RUN_ID": Variable(meaning="Identifies a job of torchrun.", set_by="torchrun"),
    "TORCHELASTIC_RESTART_COUNT": Variable(
        meaning="Number of the attempt: the ranks of one attempt meet separately from earlier ones.", set_by="torchrun"
    ),
    "TORCHELASTIC_USE_AGENT_STORE": Variable(
        meaning="`True`: torchrun listens at the address, so rank 0 does not.", set_by="torchrun"
    ),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": Variable(
        meaning="Error handling of NCCL; recorded, unless it has torchrun's value `1`.", set_by="you, or torchrun"
    ),
    "SLURM_PROCID": Variable(meaning="Rank of this process in a step of several tasks.", set_by="srun"),
    "SLURM_STEP_ID": Variable(meaning="Identifies the step: without it, a batch script is no rank.", set_by="srun"),
    "SLURM_STEP_NUM_TASKS": Variable(meaning="Number of ranks.", set_by="srun"),
    "SLURM_NTASKS": Variable(meaning="Number of ranks without SLURM_STEP_NUM_TASKS.", set_by="srun"),
    "SLURM_LOCALID": Variable(meaning="Rank on this machine, which selects the GPU.", set_by="srun"),
    "SLURM_*": Variable(
        meaning="Removed for ranks that deep5 starts: all of them run on this machine, whatever was allocated.",
        set_by="Slurm",
    ),
    "PBS_*": Variable(meaning="As SLURM_*.", set_by="PBS"),
    "LSB_*": Variable(meaning="As SLURM_*.", set_by="LSF"),
    "FLUX_*": Variable(meaning="As SLURM_*.", set_by="Flux"),
    "COBALT_*": Variable(meaning="As SLURM_*.", set_by="Cobalt"),
    "PE_HOSTFILE": Variable(meaning="As SLURM_*.", set_by="Grid Engine"),
    "GLOO_SOCKET_IFNAME": Variable(
        meaning="Network interface of PyTorch's process groups with gloo; of several names, the first.",
        unset="gloo's choice",
    ),
    "CUDA_VISIBLE_DEVICES": Variable(
        meaning="GPUs of NVIDIA that this process sees: if it is one, a rank uses it. The energy of a GPU is read by "
        "its number there.",
        unset="all GPUs",
    ),
    "HIP_VISIBLE_DEVICES": Variable(meaning="As CUDA_VISIBLE_DEVICES, of AMD.", unset="all GPUs"),
}

VARIABLES: Mapping[str, Mapping[str, Variable]] = {
    "Files": _FILES,
    "Output": _OUTPUT,
    "Compilers and programs": _COMPILERS,
    "Threads and libraries": _LIBRARIES,
    "Ranks and GPUs": _RANKS,
}
"""The variables by topic and name; a name that ends in `*` stands for all that begin so."""


def known_variable(name: str) -> bool:
    """Whether the table has a variable.

    >>> known_variable("DEEP5_CACHE"), known_variable("SLURM_JOB_ID"), known_variable("DEEP5_CACHES")
    (True, True, False)
    """
    return any(
        name == known or (known.endswith("*") and name.startswith(known[:-1]))
        for table in VARIABLES.values()
        for known in table
    )
