"""Signed result folders, with real keys, `ssh-keygen` and `sha256sum`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deep5.audit.folders import audit
from deep5.core.errors import MissingDependency, UsageError
from deep5.recipe.recipe import load_recipe
from deep5.results.folder import locked
from deep5.results.signature import MANIFEST, SIGNATURE, sign, verify
from deep5.run.execute import execute
from stored_runs import SSH_KEYGEN, new_key

SSH_AGENT, SSH_ADD, SHA256SUM = (shutil.which(name) or name for name in ("ssh-agent", "ssh-add", "sha256sum"))
ODD = "odd \\ name\nof two lines"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    new_key(folder, "mine", "ada@example.org")
    new_key(folder, "other", "eve@example.org")
    return folder


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    return execute(load_recipe("digits_lenet").at_size("smoke"), out=out).folder


@pytest.fixture
def signed(measured: Path, keys: Path, tmp_path: Path) -> Path:
    """A signed result, with a file whose name needs escapes."""
    folder = tmp_path / "signed"
    shutil.copytree(measured, folder)
    (folder / ODD).write_text("content", encoding="utf-8")
    assert sign(folder, keys / "mine") == len(list(folder.iterdir())) - 2
    return folder


def test_what_is_as_signed(signed: Path, keys: Path, tmp_path: Path) -> None:
    found = verify(signed, keys / "mine.pub")
    assert found
    assert (found.signer, found.faults) == ("ada@example.org", ())
    listed = subprocess.run([SSH_KEYGEN, "-l", "-f", str(keys / "mine")], capture_output=True, text=True, check=True)
    assert found.key in listed.stdout
    # Other programs read the same files.
    subprocess.run([SHA256SUM, "--check", "--strict", MANIFEST], cwd=signed, check=True, capture_output=True)
    allowed = tmp_path / "allowed"
    allowed.write_text(f"team {(keys / 'other.pub').read_text()}team {(keys / 'mine.pub').read_text()}")
    options = ("-n", "deep5-results", "-I", "team", "-f", allowed, "-s", signed / SIGNATURE)
    with (signed / MANIFEST).open("rb") as text:
        subprocess.run([SSH_KEYGEN, "-Y", "verify", *options], stdin=text, check=True, capture_output=True, timeout=60)
    assert verify(signed, allowed).signer == "team"
    assert not audit([signed]).findings


def changed_value(folder: Path) -> None:
    path = folder / "result.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["started"] = "2020-01-01T00:00:00Z"
    path.write_text(json.dumps(document), encoding="utf-8")


def changed_hash(folder: Path) -> None:
    text = (folder / MANIFEST).read_text(encoding="utf-8")
    (folder / MANIFEST).write_text(("0" if text[0] != "0" else "1") + text[1:], encoding="utf-8")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a value": (changed_value, "result.json: changed"),
    "a byte more": (
        lambda folder: (folder / "samples.csv").write_bytes((folder / "samples.csv").read_bytes() + b"\n"),
        "samples.csv: changed",
    ),
    "a file less": (lambda folder: (folder / "samples.csv").unlink(), "samples.csv: missing"),
    "an odd name less": (lambda folder: (folder / ODD).unlink(), f"{ODD}: missing"),
    "a file more": (lambda folder: (folder / "more").touch(), "more: added"),
    "a file below": (
        lambda folder: ((folder / "below").mkdir(), (folder / "below" / MANIFEST).touch()),
        f"below/{MANIFEST}: added",
    ),
    "a hash": (changed_hash, f"{SIGNATURE} is not a signature of {MANIFEST}"),
    "no hashes": (lambda folder: (folder / MANIFEST).write_text(""), f"{SIGNATURE} is not a signature of {MANIFEST}"),
    "no signature": (lambda folder: (folder / SIGNATURE).write_text("x"), f"{SIGNATURE} is not a signature"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_later_change_is_visible(signed: Path, keys: Path, change: str) -> None:
    make, said = CHANGES[change]
    make(signed)
    found = verify(signed, keys / "mine.pub")
    assert not found
    assert any(fault.startswith(said) for fault in found.faults), found.faults


def test_another_key_is_visible(signed: Path, keys: Path) -> None:
    (signed / "samples.csv").write_text("x")
    sign(signed, keys / "other")
    found = verify(signed, keys / "mine.pub")
    assert not found
    assert found.signer == ""
    assert found.faults == (f"it is signed with the key {found.key}; allowed: a key in {keys / 'mine.pub'}",)
    without = verify(signed)
    (fault,) = without.faults
    assert fault.startswith("the key is not compared with the signer's; remedy: --signer FILE")
    assert without.only_unproved
    (signed / "samples.csv").write_text("y")
    assert not verify(signed).only_unproved


def test_a_signature_for_another_purpose_is_none(signed: Path, keys: Path) -> None:
    (signed / SIGNATURE).unlink()
    command = [SSH_KEYGEN, "-Y", "sign", "-n", "git", "-f", str(keys / "mine"), str(signed / MANIFEST)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert verify(signed, keys / "mine.pub").key == ""


def test_a_key_of_an_agent_signs(signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = new_key(tmp_path, "held", "ada@example.org", "a long passphrase")
    with pytest.raises(UsageError, match=r"ssh-keygen cannot sign with .*passphrase.*remedy: ssh-add .*held, then"):
        sign(signed, held)
    unlocked = tmp_path / "unlocked"
    shutil.copy(held, unlocked)
    command = [SSH_KEYGEN, "-q", "-p", "-P", "a long passphrase", "-N", "", "-f", str(unlocked)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    # A short path: the system limits those of sockets to 108 bytes.
    place = os.path.relpath(tmp_path)
    agent = subprocess.Popen([SSH_AGENT, "-D", "-a", "agent"], cwd=place, stdout=subprocess.PIPE)
    try:
        assert agent.stdout is not None
        agent.stdout.readline()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("SSH_AUTH_SOCK", "agent")
        subprocess.run([SSH_ADD, "-q", str(unlocked)], check=True, timeout=60)
        sign(signed, f"{held}.pub")
    finally:
        agent.kill()
        agent.communicate(timeout=60)
    assert verify(signed, f"{held}.pub")


def test_what_cannot_be_signed_or_verified(
    measured: Path, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, key = tmp_path / "folder", keys / "mine"
    with pytest.raises(UsageError, match="which is no folder; allowed: a result folder"):
        sign(folder, key)
    folder.mkdir()
    with pytest.raises(UsageError, match="holds no files"):
        sign(folder, key)
    shutil.copytree(measured, folder / "run")
    with pytest.raises(UsageError, match="is not signed: there is no SHA256SUMS; remedy: deep5 results sign"):
        verify(folder)
    with pytest.raises(UsageError, match="which is not a file; remedy: --key"):
        sign(folder, tmp_path / "nothing")
    with pytest.raises(UsageError, match="ssh-keygen cannot sign with"):
        sign(folder, folder / "run" / "result.json")
    handle = locked(folder / "run")
    with pytest.raises(UsageError, match=r"a run still writes to .*run; allowed: one run at a time"):
        sign(folder, key)
    os.close(handle)
    for make in (lambda path: path.symlink_to("run"), os.mkfifo):
        make(folder / "odd")
        with pytest.raises(UsageError, match="odd is a link or no file"):
            sign(folder, key)
        (folder / "odd").unlink()
    sign(folder, key)
    for signers, said in (
        (tmp_path / "nothing", "which is no file"),
        (key, "is a private key; allowed: the public key"),
    ):
        with pytest.raises(UsageError, match=said):
            verify(folder, signers)
    assert not verify(folder, folder / "run" / "result.json")  # no allowed signers
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match=r"ssh-keygen cannot be started .*remedy: OpenSSH"):
        verify(folder)


def command(*words: object) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-c", "from deep5.cli.main import main; main()", "results", *map(str, words)]
    return subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)


def test_the_commands(measured: Path, keys: Path, tmp_path: Path) -> None:
    root = tmp_path / "results"
    shutil.copytree(measured, root / measured.name)
    done = command("sign", root, "--key", keys / "mine")
    assert done.returncode == 0, done.stderr
    assert f"deep5 results verify {root} --signer {keys / 'mine'}.pub" in done.stdout
    done = command("verify", root, "--signer", keys / "mine.pub")
    assert done.returncode == 0, done.stderr
    assert "signed by ada@example.org with the key SHA256:" in done.stdout
    # Results in a signed folder are listed, with and without the command's name.
    assert command(root).stdout == command("list", root).stdout
    assert measured.name in command(root, "--columns", "result").stdout
    (root / measured.name / "samples.csv").unlink()
    done = command("verify", root, "--signer", keys / "mine.pub", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["faults"] == [f"{measured.name}/samples.csv: missing"]
    assert command("verify", root / measured.name).returncode == 2
