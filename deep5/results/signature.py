"""Signatures of result folders: SHA-256 of every file, signed with an SSH key, so that later changes are visible.

The formats are those of other programs: `sha256sum --check SHA256SUMS` and `ssh-keygen -Y verify` read them, too.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deep5.core.child_process import supervise
from deep5.core.errors import MissingDependency, OutputError, UsageError, brief
from deep5.core.files import is_file, is_folder, write_atomically
from deep5.core.process_end import Ended
from deep5.core.progress import tracked
from deep5.results.folder import locked

__all__ = ["MANIFEST", "SIGNATURE", "Verified", "sign", "verify"]

MANIFEST = "SHA256SUMS"
"""The file with the hash of every other file below the folder, in the format of `sha256sum`."""
SIGNATURE = "SHA256SUMS.sig"
"""The SSH signature of the file of hashes."""

# Signatures for another purpose are not accepted.
_NAMESPACE = "deep5-results"
# A key in hardware waits for a touch.
_LIMIT_S = 120.0
_CHUNK_BYTES = 1 << 20
_MOST_BYTES = 64 << 20
_LINE = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)")
_KEY = re.compile(r"(ssh-|ecdsa-|sk-)[\w@.-]+ ")
_FINGERPRINT = re.compile(r"SHA256:[\w+/=]+")

_NOT_COMPARED = "the key is not compared with the signer's; remedy: --signer FILE, the signer's public key"


@dataclass(frozen=True)
class Verified:
    """What the verification of a signed folder found.

    Attributes:
        files: Number of signed files.
        key: Fingerprint of the key that made the signature, as `SHA256:…`; "" if the signature is not valid.
        signer: Name of the signer, if the key is one of the given ones; "" otherwise.
        faults: What is not as it was signed, or not proved; empty if everything is.
    """

    files: int
    key: str
    signer: str
    faults: tuple[str, ...]

    @property
    def only_unproved(self) -> bool:
        """Whether everything is as signed, and no signer's key was given to compare with."""
        return self.faults == (_NOT_COMPARED,)

    def __bool__(self) -> bool:
        return not self.faults


def sign(folder: str | Path, key: str | Path) -> int:
    """Write `SHA256SUMS` and its signature into a folder; an earlier signature is replaced.

    Args:
        folder: A result folder, or one that contains result folders.
        key: The SSH private key; or the public one, if an agent holds the private one.

    Returns:
        The number of signed files.

    Raises:
        UsageError: There is no such folder, it holds no files or a link, a run still writes to it, or the key
            cannot sign.
        MissingDependency: `ssh-keygen` is not installed.
        OutputError: The folder cannot be written.
    """
    root = _folder(folder)
    if not is_file(key):
        raise UsageError(f"got the key {brief(str(key))}, which is not a file; remedy: --key ~/.ssh/id_ed25519, say")
    hashes = _hashes(root, locked)
    if not hashes:
        raise UsageError(f"{root} holds no files; allowed: a result folder, or a folder of them")
    text = "".join(_line(name, value) for name, value in sorted(hashes.items())).encode("utf-8", "surrogateescape")
    with tempfile.TemporaryDirectory(prefix="deep5-sign-") as place:
        manifest = Path(place, MANIFEST)
        manifest.write_bytes(text)
        done = _ssh_keygen("-Y", "sign", "-n", _NAMESPACE, "-f", str(key), str(manifest))
        signature = Path(place, SIGNATURE)
        if done.status or not signature.exists():
            raise UsageError(
                f"ssh-keygen cannot sign with {key}: {_said(done)}; allowed: a private key without a passphrase, or a "
                f"public key whose private key an agent holds; remedy: ssh-add {str(key).removesuffix('.pub')}, then "
                f"--key {str(key).removesuffix('.pub')}.pub"
            )
        signed = signature.read_bytes()
    try:
        write_atomically(root / MANIFEST, text)
        write_atomically(root / SIGNATURE, signed)
    except OSError as error:
        raise OutputError(f"the signature cannot be written to {root}: {error.strerror or error}") from error
    return len(hashes)


def verify(folder: str | Path, signers: str | Path | None = None) -> Verified:
    """Compare a signed folder with its signature.

    Args:
        folder: The folder that was signed.
        signers: The signer's public key, or a file of allowed signers as `ssh-keygen` defines it. None: the signature
            is compared with the files, and no one vouches for its key, which is a fault.

    Raises:
        UsageError: There is no such folder, it is not signed, or `signers` is not such a file.
        MissingDependency: `ssh-keygen` is not installed.
    """
    root = _folder(folder)
    for name in (MANIFEST, SIGNATURE):
        if not is_file(root / name):
            raise UsageError(f"{root} is not signed: there is no {name}; remedy: deep5 results sign {root} --key FILE")
    try:
        if max((root / name).stat().st_size for name in (MANIFEST, SIGNATURE)) > _MOST_BYTES:
            raise UsageError(
                f"the signature of {root} has more than {_MOST_BYTES} bytes; remedy: sign the folder again"
            )
        text = (root / MANIFEST).read_bytes()
    except OSError as error:
        raise UsageError(f"the signature of {root} cannot be read: {error.strerror or error}") from error
    key, signer, faults = _signer(root / SIGNATURE, text, signers)
    known = _read(text)
    if known is None:
        return Verified(0, key, signer, (*faults, f"{MANIFEST} is damaged: not every line is a hash and a name"))
    now = _hashes(root)
    faults += [f"{name}: changed" for name in sorted(known.keys() & now.keys()) if known[name] != now[name]]
    faults += [f"{name}: missing" for name in sorted(known.keys() - now.keys())]
    faults += [f"{name}: added" for name in sorted(now.keys() - known.keys())]
    return Verified(len(known), key, signer, tuple(faults))


def _folder(folder: str | Path) -> Path:
    if not is_folder(folder):
        raise UsageError(f"got {brief(str(folder))}, which is no folder; allowed: a result folder, or a folder of them")
    return Path(folder)


def _hashes(root: Path, lock: Callable[[Path], int] | None = None) -> dict[str, str]:
    """The SHA-256 of every file below a folder, except for its own signature.

    Args:
        root: The folder.
        lock: Locks each folder while its files are read, and refuses one to which a run writes; returns a handle.

    Raises:
        UsageError: Something is neither a file nor a folder, or cannot be read.
    """
    found = dict[str, str]()

    def unread(error: OSError) -> None:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror or error}") from error

    places = list(os.walk(root, onerror=unread))
    for place, inner, names in tracked(places, f"hashing the files of {root}", len(places)):
        handle = -1 if lock is None else lock(Path(place))
        try:
            for name in (*inner, *names):
                path = Path(place, name)
                mode = path.lstat().st_mode
                if stat.S_ISDIR(mode):
                    continue
                if not stat.S_ISREG(mode):
                    raise UsageError(f"{path} is a link or no file; allowed: files and folders")
                relative = path.relative_to(root).as_posix()
                if relative not in (MANIFEST, SIGNATURE):
                    found[relative] = _hash(path)
        finally:
            if handle >= 0:
                os.close(handle)
    return found


def _hash(path: Path) -> str:
    sha = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                sha.update(chunk)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    return sha.hexdigest()


def _line(name: str, value: str) -> str:
    """A line as `sha256sum` writes it: a backslash first if the name has one, or a line break."""
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"{'' if escaped == name else chr(92)}{value}  {escaped}\n"


def _read(text: bytes) -> dict[str, str] | None:
    """The hashes by name; None if a line is none."""
    known = dict[str, str]()
    for line in text.decode("utf-8", "surrogateescape").split("\n")[:-1]:
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        escaped, value, name = match.groups()
        if escaped:
            name = re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), name)
        known[name] = value
    return known or None


def _signer(signature: Path, text: bytes, signers: str | Path | None) -> tuple[str, str, list[str]]:
    """Fingerprint and name of the signer of a string, and what is wrong."""
    done = _ssh_keygen("-Y", "check-novalidate", "-n", _NAMESPACE, "-s", str(signature), sent=text)
    found = _FINGERPRINT.search(done.output.decode("utf-8", "replace"))
    if done.status or found is None:
        return "", "", [f"{SIGNATURE} is not a signature of {MANIFEST}: {_said(done)}"]
    key = found[0]
    if signers is None:
        return key, "", [_NOT_COMPARED]
    with _allowed(signers) as allowed:
        given = ("-n", _NAMESPACE, "-s", str(signature), "-f", allowed)
        names = _ssh_keygen("-Y", "find-principals", *given).output.decode("utf-8", "replace").splitlines()
        for name in names[:1]:
            if not _ssh_keygen("-Y", "verify", "-I", name, *given, sent=text).status:
                return key, name, []
    return key, "", [f"it is signed with the key {key}; allowed: a key in {signers}"]


@contextmanager
def _allowed(signers: str | Path) -> Iterator[str]:
    """A file of allowed signers: the given one, or one made of a public key."""
    if not is_file(signers):
        raise UsageError(f"got {brief(str(signers))}, which is no file; allowed: a public key, or a file of signers")
    try:
        with Path(signers).open("rb") as file:
            given = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{signers} cannot be read: {error.strerror or error}") from error
    if "PRIVATE KEY" in given[:100]:
        raise UsageError(f"{signers} is a private key; allowed: the public key, {signers}.pub")
    if not _KEY.match(given):
        yield str(signers)
        return
    with tempfile.TemporaryDirectory(prefix="deep5-sign-") as place:
        made = Path(place, "signers")
        # The comment of a public key is usually the name of its owner.
        words = given.splitlines()[0].split(" ", 2)
        name = re.sub(r"[^\w@.+-]", "_", words[2].strip()) if len(words) > 2 and words[2].strip() else "signer"
        made.write_text(f"{name} {' '.join(words[:2])}\n", encoding="utf-8")
        yield str(made)


def _ssh_keygen(*words: str, sent: bytes = b"") -> Ended:
    try:
        return supervise(["ssh-keygen", *words], time_limit_s=_LIMIT_S, sent=sent)
    except OSError as error:
        raise MissingDependency(
            f"the program ssh-keygen cannot be started ({error.strerror or error}); remedy: OpenSSH 8.1 or newer"
        ) from error


def _said(done: Ended) -> str:
    if done.late:
        return f"no answer within {_LIMIT_S:g} s"
    lines = done.output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else "it says nothing"
