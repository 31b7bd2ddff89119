"""Sweeps on Slurm: a real cluster, whose jobs, daemons and drivers are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import slurm_cluster
from deep5.audit import audit
from deep5.core.errors import UsageError
from deep5.engines import slurm_batches
from deep5.engines.lease import ATTEMPT
from deep5.engines.make import make_engine
from deep5.engines.slurm_engine import parse_options
from deep5.results.report.collect import collect
from deep5.results.report.page import report_page
from deep5.results.result import load
from deep5.results.sweep.record import load_sweep
from deep5.results.time_to_target import Target
from deep5.search.sweep import run_sweep
from deep5.study.study import run_study
from slurm_cluster import SlurmCluster
from small_recipe import RECIPE

SPACE = {"optimizer_kwargs.lr": "log(1e-4, 1)"}

pytestmark = pytest.mark.skipif(bool(slurm_cluster.missing()), reason=f"missing: {slurm_cluster.missing()}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    # Not below pytest's folder: the path of a socket has at most 107 bytes.
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture(autouse=True)
def _at_the_cluster(cluster, monkeypatch):
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    yield
    monkeypatch.undo()
    for job in cluster.said("squeue", "--noheader", "--states=R,PD", "--format=%i").split():
        cluster.said("scancel", job)
    until(lambda: not cluster.said("squeue", "--noheader", "--states=R,PD,CG"))


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def local(recipe, tmp_path):
    """The table of the sweep on this machine, with as many epochs as stated."""
    return lambda **more: rows(search(recipe, tmp_path / "local", **more))


def search(recipe, out, **more):
    about = {"goal": "test_loss", "trials": 4, "sampler": "random", "parallel": 2, "workers": 1, "out": out}
    return run_sweep(recipe, SPACE, **{**about, **more})


def rows(sweep):
    return [(t.number, t.settings, t.state, t.value, tuple(t.curve), t.epochs, t.steps) for t in sweep.trials]


def started(recipe, out, *more, epochs=2, trials=4, engine="slurm"):
    words = [sys.executable, "-m", "deep5", "sweep", str(recipe), "--goal", "test_loss", "--trials", str(trials)]
    words += ["--sampler", "random", "--param", "optimizer_kwargs.lr=log(1e-4, 1)", "--parallel", "2"]
    words += ["--set", f"epochs={epochs}", "--engine", engine, "--quiet", "--out", str(out), *more]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def ended(process, seconds=120.0):
    try:
        errors = process.communicate(timeout=seconds)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors


def curves(out):
    return [*Path(out).glob("*/runs/00000/*/*/curve.jsonl")]


def running(cluster):
    return cluster.said("squeue", "--noheader", "--states=R", "--format=%i").split()


def noted(folder):
    return [json.loads(line) for line in (folder / "engine" / "jobs.jsonl").read_text().splitlines()]


def only(out):
    [folder] = Path(out).iterdir()
    return load_sweep(folder)


def once(sweep):
    """Each trial has one attempt that counts, and its run is complete."""
    for trial in sweep.trials:
        assert load(sweep.folder / trial.run, root=sweep.folder).status == "success"
        documents = [json.loads(path.read_text()) for path in sweep.folder.glob(f"runs/{trial.number:05d}/*/{ATTEMPT}")]
        assert sum(document["ended"] is not None for document in documents) == 1


@pytest.mark.parametrize(
    ("options", "workers"),
    [("", 2), ("shared=no", 2), ("partition=main,time=5,runs=2", 4), ("runs=4", 4)],
    ids=["", "srun", "array", "runs"],
)
def test_the_same_trials_as_on_this_machine(recipe, local, tmp_path, cluster, options, workers):
    done = search(recipe, tmp_path / "out", engine=f"slurm:{options}", workers=workers, parallel=4)
    assert rows(done) == local(parallel=4)
    once(done)
    assert {trial.host for trial in done.trials} == {os.uname().nodename}
    if options == "shared=no":
        assert not (done.folder / "engine").exists()
    elif "time=5" in options:  # an array of two tasks, with their options
        assert [line["calls"] for line in noted(done.folder)] == [[["00000", "00001"], ["00002", "00003"]]]
        names = cluster.said("squeue", "--states=all", "--noheader", "--format=%j %P %l").splitlines()
        [job] = {line["job"] for line in noted(done.folder)}
        assert [name for name in names if name.startswith(job)] == [f"{job} main 5:00"] * 2
    elif workers == 4:  # one job for all four
        assert [line["calls"] for line in noted(done.folder)] == [[["00000", "00001", "00002", "00003"]]]


def test_a_pruned_sweep_is_the_same(recipe, tmp_path):
    about = {"trials": 9, "pruner": "median", "common": {"epochs": 6}, "parallel": 1}
    ours = search(recipe, tmp_path / "out", engine="slurm", **about)
    away = search(recipe, tmp_path / "away", engine="slurm:shared=no", **about)
    here = search(recipe, tmp_path / "here", **about)
    told = [(t.state, t.value, tuple(t.curve)) for t in here.trials]
    assert [(t.state, t.value, tuple(t.curve)) for t in ours.trials] == told
    assert [(t.state, t.value, tuple(t.curve)) for t in away.trials] == told
    assert "pruned" in {t.state for t in here.trials}


@pytest.mark.daily
def test_a_killed_driver_leaves_its_jobs_and_the_next_one_finds_them(recipe, local, tmp_path, cluster):
    driver = started(recipe, tmp_path / "out", epochs=400)
    until(lambda: curves(tmp_path / "out"))
    driver.kill()
    driver.communicate()
    assert running(cluster)
    [folder] = (tmp_path / "out").iterdir()
    ended(started(recipe, tmp_path / "out", "--resume", str(folder), epochs=400))
    done = only(tmp_path / "out")
    assert rows(done) == local(common={"epochs": 400})
    once(done)
    assert [trial.attempts for trial in done.trials] == [1] * 4
    assert ["calls" in line for line in noted(folder)] == [True] * 4  # none was submitted again


def test_a_killed_job_is_submitted_again(recipe, tmp_path):
    driver = started(recipe, tmp_path / "out", epochs=800, trials=1)
    until(lambda: curves(tmp_path / "out"))
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if "slurm_job" in words and str(tmp_path) in words:  # other tests have jobs, too
            process.kill()
    ended(driver)
    done = only(tmp_path / "out")
    once(done)
    assert done.trials[0].attempts == 2
    assert done.trials[0].epochs == 800


@pytest.mark.parametrize("fault", ["controller", "node"])
def test_a_killed_daemon_loses_nothing(recipe, local, tmp_path, cluster, fault):
    driver = started(recipe, tmp_path / "out", epochs=200)
    until(lambda: curves(tmp_path / "out"))
    if fault == "controller":
        cluster.kill("slurmctld")
        time.sleep(1.0)
        cluster.start_controller()
    else:
        cluster.kill("slurmd-n0")
        cluster.kill("slurmd-n1")
        time.sleep(2.0)
        cluster.start_node("n0")
        cluster.start_node("n1")
    ended(driver)
    done = only(tmp_path / "out")
    assert rows(done) == local(common={"epochs": 200})
    once(done)
    assert not cluster.said("squeue", "--noheader", "--states=R,PD")  # what came back after its answer is canceled


def test_an_announced_time_limit_queues_the_job_again(recipe, local, tmp_path, cluster):
    driver = started(recipe, tmp_path / "out", epochs=800, trials=1)
    until(lambda: curves(tmp_path / "out"))
    [job] = running(cluster)
    cluster.said("scancel", "--signal=USR1", "--batch", job)  # as Slurm does, 60 s before
    until(lambda: cluster.said("squeue", "--noheader", "--states=PD", "--format=%i %r") == f"{job} BeginTime")
    time.sleep(2.5)  # within the same second, Slurm refuses its own credential
    cluster.said("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm waits for two minutes
    ended(driver)
    done = only(tmp_path / "out")
    assert rows(done) == local(common={"epochs": 800}, trials=1)
    once(done)
    assert done.trials[0].attempts == 2
    assert len(noted(done.folder)) == 1, noted(done.folder)  # Slurm carried it out again, not this engine
    [first] = [*done.folder.glob(f"runs/00000/1/{ATTEMPT}")]
    assert json.loads(first.read_text())["released"] is True


def test_a_cancelled_job_is_submitted_again(recipe, tmp_path, cluster):
    driver = started(recipe, tmp_path / "out", epochs=800, trials=1)
    until(lambda: curves(tmp_path / "out"))
    [job] = running(cluster)
    cluster.said("scancel", job)
    ended(driver)
    done = only(tmp_path / "out")
    once(done)
    assert done.trials[0].attempts == 2


def test_a_preempted_job_continues_where_it_was(recipe, local, tmp_path, cluster):
    driver = started(recipe, tmp_path / "out", epochs=800, trials=1)
    until(lambda: curves(tmp_path / "out"))
    [job] = running(cluster)
    cluster.said(
        "sbatch",
        "--partition=urgent",
        f"--nodes={len(cluster.nodes)}",
        "--exclusive",
        "--output=/dev/null",
        "--wrap=true",
    )
    until(lambda: job in cluster.said("squeue", "--noheader", "--states=PD", "--format=%i").split())
    time.sleep(2.5)
    cluster.said("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm waits for two minutes
    ended(driver)
    done = only(tmp_path / "out")
    assert rows(done) == local(common={"epochs": 800}, trials=1)
    once(done)
    assert done.trials[0].attempts == 2
    assert len(noted(done.folder)) == 1, noted(done.folder)


@pytest.mark.parametrize("engine", ["slurm", "slurm:shared=no"])
def test_an_interrupted_sweep_cancels_its_jobs_and_can_resume(recipe, tmp_path, cluster, engine):
    driver = started(recipe, tmp_path / "out", epochs=800, trials=1, engine=engine)
    until(lambda: running(cluster))
    time.sleep(1.0)
    driver.send_signal(signal.SIGINT)
    said = driver.communicate(timeout=60)[1]
    assert driver.returncode == 130
    assert "to resume, add --resume" in said
    until(lambda: not cluster.said("squeue", "--noheader", "--states=R,PD,CG"))
    [folder] = (tmp_path / "out").iterdir()
    ended(started(recipe, tmp_path / "out", "--resume", str(folder), epochs=800, trials=1, engine=engine))
    once(only(tmp_path / "out"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("partition=none", "Slurm refuses a job: .*invalid partition"),
        ("nodelist=n7", "Slurm refuses a job: .*Invalid node name"),
        ("time=never", "Slurm refuses a job: .*Invalid --time"),
        ("partition=short,time=99999", "Slurm (refuses|will not start) a job: .*(TimeLimit|time limit)"),
        ("time=3", "time=3; allowed: at least 4 minutes"),
        ("runs=0", "1 to 1000 runs per job"),
        ("shared=maybe", "allowed: yes, no"),
        ("fast", r"'fast'; allowed: NAME=VALUE of partition, .*runs, shared"),
        ("time=1,time=2", "once each"),
        ("partition=$(id)", "allowed: NAME=VALUE"),
    ],
)
def test_what_is_refused(recipe, tmp_path, options, told):
    with pytest.raises(UsageError, match=told):
        search(recipe, tmp_path / "out", engine=f"slurm:{options}", trials=1)
    assert not [*(tmp_path / "out").glob("*")]  # a sweep without a trial is not worth resuming


STUDY = (
    RECIPE.replace("TestLoss(), None)", "TestLoss(), None), (d5.TestAccuracy(), None), (d5.Throughput(), None)")
    + """
METRICS.append((d5.TrainingLoss(), None))
STUDY = {"one": {}, "two": {"ranks": 2, "launcher": "mpiexec"}}
"""
)


def test_a_study_has_the_same_runs_with_their_own_resources(recipe, tmp_path, cluster):
    recipe.write_text(STUDY)
    about = {
        "seeds": (0, 1),
        "common": {"threads": 1},
        "target": Target(metric="test_accuracy", goal=20.0, origin="asked"),
    }
    here = run_study(recipe, out=tmp_path / "here", **about)
    for workers in (1, 2):
        there = run_study(recipe, out=tmp_path / f"there-{workers}", engine="slurm", workers=workers, **about)
        assert not any(there.failures.values()), there.failures
        for name in ("one", "two"):
            ours, theirs = ([run.metric("test_loss") for run in own.runs[name]] for own in (there, here))
            assert ours == theirs
        assert audit([there.folder]).findings == ()
        document = json.loads((there.folder / "study.json").read_text())
        page = report_page(collect([there.folder]))
        assert ("samples/s" in page, "(s)" in page) == (workers == 1, workers == 1)
        row = document["candidates"]["one"]
        assert ("throughput" in row["metrics"], "seconds" in row["time_to_target"]) == (workers == 1, workers == 1)
        assert (there.folder / "loss.svg").exists() == (workers == 1)
    counts = cluster.said("squeue", "--states=all", "--noheader", "--format=%C").split()
    assert {"1", "2", str(os.cpu_count())} == set(counts)  # a processor per rank; with one worker, the whole node


def test_more_processors_than_a_node_has_are_refused(recipe, tmp_path):
    told = r"Slurm (will not start|refuses) a job: .*; allowed: what the cluster has; remedy: sinfo"
    with pytest.raises(UsageError, match=told):
        search(recipe, tmp_path / "out", engine="slurm", trials=1, common={"threads": 4096})
    assert not [*(tmp_path / "out").glob("*")]


def test_runs_that_wait_in_the_queue_are_told(recipe, tmp_path, cluster):
    told = []
    cluster.said("scontrol", "update", "NodeName=ALL", "State=DRAIN", "Reason=test")

    def tell(line):
        told.append(str(line))
        if "in Slurm's queue" in line:
            cluster.resume()

    done = search(recipe, tmp_path / "out", engine="slurm", trials=1, tell=tell)
    assert done.trials[0].state == "finished"
    assert [line for line in told if line.startswith("1 run in Slurm's queue (")]


def test_a_study_is_attached_to_by_its_folder(recipe, tmp_path, cluster):
    words = [sys.executable, "-m", "deep5", "study", str(recipe), "--vary", "optimizer=adam,momentum", "--seeds", "1"]
    words += ["--set", "epochs=400", "--workers", "2", "--engine", "slurm", "--quiet", "--out", str(tmp_path / "out")]
    driver = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(lambda: len(running(cluster)) == 2)
    driver.kill()
    driver.communicate()
    [folder] = (tmp_path / "out").iterdir()
    again = [*words[:4], "--attach", str(folder), "--quiet"]
    ended(subprocess.Popen(again, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    document = json.loads((folder / "study.json").read_text())
    assert (document["finished"], document["engine"], document["workers"]) == (True, "slurm", 2)
    assert [len(own["runs"]) for own in document["candidates"].values()] == [1, 1]
    assert len(noted(folder)) == 1  # both runs, by the jobs of the first command
    assert audit([folder]).findings == ()


def test_a_comparison_and_a_benchmark_run_where_they_are_told(tmp_path, deep5):
    words = ["digits_lenet", "--frameworks", "reference,pytorch", "--size", "smoke", "--steps", "3", "--threads", "1"]
    answer = deep5("compare", *words, "--engine", "slurm", "--out", str(tmp_path / "out"))
    assert answer.status == 0, answer.err
    [folder] = (tmp_path / "out").iterdir()
    assert str(folder) in answer.out
    assert "pytorch" in answer.out
    assert audit([folder]).findings == ()
    answer = deep5(
        "bench", "operator", "Relu", "--shape", "8x8", "--frameworks", "reference", "--quick", "--json", "--engine",
        "slurm:shared=no", "--out", str(tmp_path / "bench"),
    )  # fmt: skip
    assert answer.status == 0, answer.err
    assert "Relu" in json.dumps(json.loads(answer.out))
    [folder] = (tmp_path / "bench").iterdir()
    assert load(folder).status == "success"
    assert [path.name for path in (tmp_path / "bench").iterdir()] == [folder.name]
    words[2] = "none"
    answer = deep5("compare", *words, "--engine", "slurm", "--out", str(tmp_path / "no"))
    assert answer.status == 2
    assert "unknown framework 'none'" in answer.err
    assert not [*(tmp_path / "no").iterdir()]


def test_without_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none.conf"))
    with pytest.raises(UsageError, match=r"Slurm's controller does not answer: .*allowed: a cluster in operation"):
        make_engine("slurm", workers=1, processors_each=1)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"the command sbatch was not found; .* remedy: a login node"):
        make_engine("slurm", workers=1, processors_each=1)


def test_options_of_jobs():
    assert parse_options("partition=a,gpus=1,runs=3,shared=no").words() == ["--partition=a", "--gpus=1"]
    assert parse_options("").words() == []
    run = {"processors": 3, "memory_limit_bytes": (1 << 30) + 1, "timed": True}
    assert slurm_batches.resources(run) == ["--ntasks=1", "--cpus-per-task=3", "--mem=1025M", "--exclusive"]
    few = {**run, "memory_limit_bytes": None, "timed": False}
    assert slurm_batches.resources(few) == ["--ntasks=1", "--cpus-per-task=3"]
