"""A Slurm cluster on this machine: munged, slurmctld and several slurmd, from Debian's packages, as root."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["PROGRAMS", "SlurmCluster", "missing"]

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")

_CONFIGURATION = """
ClusterName=deep5
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SlurmctldTimeout=10
SlurmdTimeout=10
MessageTimeout=10
KillWait=5
MinJobAge=60
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=ALL MaxTime={short_minutes} State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10 State=UP
"""


def missing() -> list[str]:
    """Programs that are needed and not installed; or why none of them can start."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    return lacking if lacking or os.geteuid() == 0 else ["root"]


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class SlurmCluster:
    """A cluster whose nodes are daemons on this machine, each with all its processors; a context manager.

    Args:
        folder: An empty folder for its files.
        nodes: Number of nodes.
        short_minutes: Time limit of the partition `short`; jobs of the partition `urgent` preempt those of others.

    Attributes:
        environment: Environment variables for programs that use it.
    """

    def __init__(self, folder: Path, nodes: int = 2, short_minutes: int = 1) -> None:
        self.folder, self.nodes = folder, [f"n{number}" for number in range(nodes)]
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
        host = socket.gethostname().split(".")[0]
        ports = _free_ports(nodes + 1)
        lines = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={os.cpu_count()} State=UNKNOWN"
            for name, port in zip(self.nodes, ports[1:], strict=True)
        ]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                host=host, folder=folder, port=ports[0], nodes="\n".join(lines), short_minutes=short_minutes
            )
        )
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)

    def __enter__(self) -> SlurmCluster:
        try:
            self._run(
                "munged", "--force", f"--key-file={self.folder}/munge.key", f"--socket={self.folder}/munge.sock",
                f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
                f"--seed-file={self.folder}/munge.seed",
            )  # fmt: skip
            self.start_controller()
            for name in self.nodes:
                self.start_node(name)
            self._wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(subprocess.SubprocessError):
            self.said("scancel", "--user=root")
        for name in self.nodes:
            self.kill(f"slurmd-{name}")
        self.kill("slurmctld")
        self.kill("munged")

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._run("slurmctld", "-f", f"{self.folder}/slurm.conf")

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node."""
        self._run("slurmd", "-f", f"{self.folder}/slurm.conf", "-N", name)

    def kill(self, daemon: str) -> None:
        """Kill a daemon: `slurmctld`, `munged` or `slurmd-NODE`."""
        path = self.folder / f"{daemon}.pid"
        try:
            number = int(path.read_text())
            os.kill(number, 9)
        except (OSError, ValueError):
            return
        end = time.monotonic() + 10
        while Path(f"/proc/{number}").exists() and time.monotonic() < end:
            time.sleep(0.01)
        path.unlink(missing_ok=True)

    def resume(self) -> None:
        """Let nodes that Slurm has drained after a fault work again, as an administrator does."""
        with suppress(subprocess.SubprocessError):
            for line in set(self.said("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()):
                name, state = line.split()
                if state.startswith(("drain", "down")):
                    self.said("scontrol", "update", f"NodeName={name}", "State=RESUME")

    def said(self, *command: str) -> str:
        """What one of Slurm's commands prints."""
        return subprocess.run(
            command, env=self._all(), check=True, capture_output=True, text=True, timeout=60
        ).stdout.strip()

    def _wait_until_idle(self) -> None:
        end = time.monotonic() + 30
        while True:
            try:
                if set(self.said("sinfo", "--noheader", "--Node", "--format=%T").split()) == {"idle"}:
                    return
            except subprocess.CalledProcessError:
                pass
            if time.monotonic() > end:
                raise TimeoutError(f"the cluster did not start within 30 s; its logs are in {self.folder}")
            time.sleep(0.05)

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, env=self._all(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
        )
        if done.returncode != 0:
            raise OSError(f"{command[0]} exited with status {done.returncode}: {done.stderr.strip()[-500:]}")

    def _all(self) -> dict[str, str]:
        return {**os.environ, **self.environment}


def _free_ports(count: int) -> list[int]:
    opened = [socket.socket() for _ in range(count)]
    try:
        for own in opened:
            own.bind(("127.0.0.1", 0))
        return [own.getsockname()[1] for own in opened]
    finally:
        for own in opened:
            own.close()


def _main() -> None:
    """Keep a cluster until the end of the standard input; prints its environment."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with SlurmCluster(Path(sys.argv[1])) as cluster:
        sys.stdout.write(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    _main()
