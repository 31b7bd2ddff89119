"""Downloads from a real server on this machine, and malicious archives."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import os
import shutil
import ssl
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from deep5.core import progress
from deep5.core.errors import MissingDependency, OutputError, UsageError
from deep5.core.quantities import size
from deep5.training import downloads
from deep5.training.archives import extract, inflated
from deep5.training.datasets import cifar as cifar_module
from deep5.training.datasets.cifar import cifar10
from deep5.training.downloads import Remote, data_folders, download_folder, fetch, find_or_fetch

RNG = np.random.default_rng(10)
MB = 1 << 20


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DEEP5_DATA", raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def tar(path: Path, members: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def odd_tar(path: Path, **attributes: Any) -> Path:
    """A tar file of one valid member and one with these attributes."""
    with tarfile.open(path, "w:gz") as archive:
        good = tarfile.TarInfo("good")
        good.size = 4
        archive.addfile(good, io.BytesIO(b"good"))
        info = tarfile.TarInfo("member")
        for name, value in attributes.items():
            setattr(info, name, value)
        archive.addfile(info, io.BytesIO(bytes(info.size)))
    return path


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


# Archives


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz", "zip"])
def test_archives_come_out_whole(tmp_path: Path, mode: str) -> None:
    members = {"set/a.bin": RNG.bytes(MB // 3), "set/inner/b": b"", "c.txt": b"hello"}
    path = tmp_path / "archive"
    if mode == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.mkdir("set")
            for name, content in members.items():
                archive.writestr(name, content)
    else:
        tar(path, members, mode)
    out = extract(path, tmp_path / "out", max_bytes=4 * MB)
    found = {file.relative_to(out).as_posix(): file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert found == members
    assert left_over(tmp_path) == ["archive", "out"]
    (out / "c.txt").write_text("changed")
    extract(path, out, max_bytes=4 * MB)  # existing files are not changed
    assert (out / "c.txt").read_text() == "changed"


def test_rights_are_those_of_new_files(tmp_path: Path) -> None:
    path = odd_tar(tmp_path / "archive", mode=0o4777, uid=1234, size=3)
    out = extract(path, tmp_path / "out", max_bytes=100)
    mode = (out / "member").stat().st_mode & 0o7777
    assert mode & 0o7111 == 0  # not executable, no set-user-ID
    assert (out / "member").stat().st_uid == os.getuid()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"name": "../out-of-it"}, r"'\.\./out-of-it' leads out of the archive by '\.\.'"),
        ({"name": "a/../../x"}, r"leads out of the archive by '\.\.'"),
        ({"name": "/etc/x"}, "has a path that is not relative"),
        ({"name": "C:\\x"}, "has a path that is not relative"),
        ({"name": "C:x"}, "has a path that is not relative"),
        ({"name": "a\\..\\x"}, "has a path that is not relative"),
        ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "is a link, a device or the like"),
        ({"type": tarfile.SYMTYPE, "linkname": "good"}, "is a link, a device or the like"),
        ({"type": tarfile.LNKTYPE, "linkname": "../../etc/passwd"}, "is a link, a device or the like"),
        ({"type": tarfile.CHRTYPE}, "is a link, a device or the like"),
        ({"type": tarfile.FIFOTYPE}, "is a link, a device or the like"),
        ({"name": "good"}, "is there twice, or has no name"),
        ({"name": "good/inside"}, "a file as its folder"),
        ({"name": "good/inside/more"}, "a file as its folder"),
        ({"name": "good", "type": tarfile.DIRTYPE}, "'good' has the name of another member"),
        ({"name": "good/inside", "type": tarfile.DIRTYPE}, "a file as its folder"),
        ({"name": "n" * 300}, "has a name that is too long for the folder's file system; allowed: shorter names"),
        ({"name": "n" * 300, "type": tarfile.DIRTYPE}, "has a name that is too long"),
        ({"name": "n" * 300 + "/inside"}, "has a name that is too long"),
        ({"size": 200}, "holds more than the bytes allowed for it"),
    ],
)
def test_tar_files_that_are_not_safe(tmp_path: Path, attributes: dict[str, Any], message: str) -> None:
    path = odd_tar(tmp_path / "archive", **attributes)
    with pytest.raises(UsageError, match=message):
        extract(path, tmp_path / "deep" / "out", max_bytes=100)
    assert left_over(tmp_path) == ["archive", "deep"]
    assert left_over(tmp_path / "deep") == []


@pytest.mark.parametrize(
    ("name", "attribute", "message"),
    [
        ("../x", 0, "leads out of the archive"),
        ("/x", 0, "has a path that is not relative"),
        ("a/../../x", 0, "leads out of the archive"),
        ("link", 0o120777 << 16, "is a link, a device or the like"),
        ("device", 0o020777 << 16, "is a link, a device or the like"),
    ],
)
def test_zip_files_that_are_not_safe(tmp_path: Path, name: str, attribute: int, message: str) -> None:
    path = tmp_path / "archive"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = attribute
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(UsageError, match=message):
        extract(path, tmp_path / "out", max_bytes=100)
    assert left_over(tmp_path) == ["archive"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "a/"), "'a/' has the name of another member"),
        (("a/b", "a"), "'a' has the name of another member"),
        (("n" * 300,), "has a name that is too long for the folder's file system"),
        (("n" * 300 + "/",), "has a name that is too long for the folder's file system"),
    ],
)
def test_names_that_no_folder_takes(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    """In a zip file and in a tar file: the error is attributed to the archive, not to the destination."""
    with zipfile.ZipFile(tmp_path / "zipped", "w") as archive:
        for name in names:
            archive.writestr(name, "")
    with tarfile.open(tmp_path / "packed", "w") as packed:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            packed.addfile(info)
    for path in (tmp_path / "zipped", tmp_path / "packed"):
        with pytest.raises(UsageError, match=message.replace("/'", "/?'")):
            extract(path, tmp_path / "out", max_bytes=100)
    assert left_over(tmp_path) == ["packed", "zipped"]


@pytest.mark.parametrize("pax", [False, True])
def test_a_damaged_header_does_not_hide_what_follows(tmp_path: Path, pax: bool) -> None:
    path = tmp_path / "archive"
    content = bytes(3000)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("one", "two" if not pax else "zwö", "three"):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    whole = path.read_bytes()
    extract(path, tmp_path / "whole", max_bytes=MB)
    assert left_over(tmp_path / "whole") == sorted(["one", "zwö" if pax else "two", "three"])
    second, last = 512 + 3072, whole.rindex(b"three\0")
    for place in (second, second + 150, last, last + 512 - 12):
        spoilt = bytearray(whole)
        spoilt[place : place + 6] = b"\x01broke"
        path.write_bytes(spoilt)
        with pytest.raises(UsageError, match=r"archive is corrupt \(ReadError: .*\); remedy: .*get it again"):
            extract(path, tmp_path / "out", max_bytes=MB)
    if pax:
        # A record of length 0 in the header that has the long name.
        path.write_bytes(whole.replace(b"13 path=", b"00 path=") if b"13 path=" in whole else b"")
        with pytest.raises(UsageError, match="archive is corrupt"):
            extract(path, tmp_path / "out", max_bytes=MB)
    for spoilt in (
        whole[:second] + bytes(512) + whole[second + 512 :],  # zeros in place of the header: an end, followed by more
        whole[:-1] + b"x",
        whole + whole,
        whole[: last + 512 + 3072],  # no end, although the content's zeros look like one
        whole[: last + 512 + 3072 + 512],
    ):
        path.write_bytes(spoilt)
        with pytest.raises(
            UsageError, match="archive is corrupt: it has no members, or does not end with zeros as tar"
        ):
            extract(path, tmp_path / "out", max_bytes=MB)
    path.write_bytes(whole[: last + 512 + 3072 + 1024])
    extract(path, tmp_path / "out", max_bytes=MB)


def test_bombs(tmp_path: Path) -> None:
    # Many small files; one large; one with a false small size in the archive; padding without end; a header without
    # end.
    many = tar(tmp_path / "many", {f"file{number}": b"" for number in range(60)})
    with pytest.raises(UsageError, match="has more than 50 members; allowed: at most 50"):
        extract(many, tmp_path / "out", max_bytes=MB, max_members=50)
    large = tar(tmp_path / "large", {"zeros": bytes(8 * MB)})
    assert large.stat().st_size < MB // 10
    with pytest.raises(UsageError, match="an archive bomb"):
        extract(large, tmp_path / "out", max_bytes=MB)
    packed = tmp_path / "packed"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(8 * MB))
    with pytest.raises(UsageError, match="an archive bomb"):
        extract(packed, tmp_path / "out", max_bytes=MB)
    lying = packed.read_bytes().replace(struct.pack("<I", 8 * MB), struct.pack("<I", 1000))
    (tmp_path / "lying").write_bytes(lying)
    with pytest.raises(UsageError, match=r"lying is corrupt \(BadZipFile"):
        extract(tmp_path / "lying", tmp_path / "out", max_bytes=MB)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("short", bytes(1000))
    (tmp_path / "short").write_bytes(packed.read_bytes().replace(struct.pack("<I", 1000), struct.pack("<I", 2000)))
    with pytest.raises(UsageError, match=r"its member 'short' does not have the 2000 bytes that the archive states"):
        extract(tmp_path / "short", tmp_path / "out", max_bytes=MB)
    padding = tmp_path / "padding"
    padding.write_bytes(gzip.compress(bytes(64 * MB)))
    with pytest.raises(UsageError, match="an archive bomb"):
        extract(padding, tmp_path / "out", max_bytes=MB, max_members=10)
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 512 * MB
    (tmp_path / "header").write_bytes(gzip.compress(header.tobuf() + bytes(64 * MB)))
    with pytest.raises(UsageError, match="an archive bomb"):
        extract(tmp_path / "header", tmp_path / "out", max_bytes=MB, max_members=10)
    assert not (tmp_path / "out").exists()
    assert not [name for name in left_over(tmp_path) if name.startswith(".")]
    with pytest.raises(UsageError, match="holds more than the bytes allowed"):
        inflated(padding, MB)


def test_encrypted_members(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("secret", b"x")
    raw = bytearray(path.read_bytes())
    raw[6] |= 1
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    with pytest.raises(UsageError, match=r"its member 'secret' is encrypted; allowed: files that are not"):
        extract(path, tmp_path / "out", max_bytes=100)


def test_corrupt_archives(tmp_path: Path) -> None:
    members = {f"set/{number}": RNG.bytes(3000) for number in range(5)}
    plain, packed = tar(tmp_path / "plain", members, "w"), tar(tmp_path / "packed", members)
    zipped = tmp_path / "zipped"
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    for path in (plain, packed, zipped):
        whole = path.read_bytes()
        middle = len(whole) // 2
        for spoilt in (
            b"",
            whole[:700],
            whole[:middle],
            whole[: 5 * (512 + 3072)] if path is plain else whole[:-9],  # its end is missing
            whole[:middle] + bytes(600) + whole[middle + 600 :],
        ):
            path.write_bytes(spoilt)
            if path is plain and spoilt[middle : middle + 600] == bytes(600):
                continue  # a tar file has no checksum of its content: the SHA-256 covers that
            with pytest.raises(UsageError, match=rf"{path.name} (is corrupt|is not unpacked|holds more)"):
                extract(path, tmp_path / "out", max_bytes=MB)
            assert not (tmp_path / "out").exists()
    plain.write_bytes(tar(plain, {}, "w").read_bytes())
    with pytest.raises(UsageError, match="plain is corrupt: it has no members"):
        extract(plain, tmp_path / "out", max_bytes=MB)
    with pytest.raises(UsageError, match=r"absent cannot be read \(No such file or directory\)"):
        extract(tmp_path / "absent", tmp_path / "out", max_bytes=MB)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_no_archive_brings_the_reader_down(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "archive"
    members = {"a/b": b"x" * 700, "c": b"yy"}
    if kind == "tar":
        tar(path, members, "w")
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    whole = path.read_bytes()
    places = RNG.integers(0, min(len(whole), 3000), 150)
    for place, byte in zip(places.tolist(), RNG.integers(0, 256, 150).tolist(), strict=True):
        path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
        with contextlib.suppress(UsageError):
            extract(path, tmp_path / "out", max_bytes=10_000, max_members=100)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        assert left_over(tmp_path) == ["archive"]


def test_a_full_disk_is_an_error_of_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    from deep5.training import archives

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tar(tmp_path / "archive", {"a": b"1"})
    monkeypatch.setattr(archives, "_copy", full)
    with pytest.raises(OutputError, match=r"out cannot be written \(No space left on device\); remedy: make room"):
        extract(path, tmp_path / "out", max_bytes=100)
    assert left_over(tmp_path) == ["archive"]


# Downloads


class Server:
    """Files by path, served over http or https on this machine; `asked` records the requests."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        server = self
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.asked: list[str] = []
        self.pause_s = 0.0  # between the bytes of a file, if not 0

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout: ClassVar[float] = 20

            def do_GET(self) -> None:
                server.asked.append(self.path)
                headers = server.headers.get(self.path, {})
                if "Location" in headers:
                    self.send_response(302)
                    self.send_header("Location", headers["Location"])
                    self.end_headers()
                elif self.path in server.files:
                    content = server.files[self.path]
                    self.send_response(200)
                    for name, value in {"Content-Length": str(len(content)), **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    with contextlib.suppress(ConnectionError):  # the client may close the connection early
                        server.write(self.wfile, content)
                else:
                    self.send_error(404)

            def log_message(self, *_: Any) -> None:
                """No output on stderr."""

        self._server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if context else 'http'}://localhost:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def write(self, file: Any, content: bytes) -> None:
        if not self.pause_s:
            file.write(content)
            return
        for byte in content:
            file.write(bytes([byte]))
            time.sleep(self.pause_s)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=30)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def remote(server: Server, content: bytes, name: str = "file.bin", **changes: Any) -> Remote:
    server.files.setdefault(f"/{name}", content)
    given: dict[str, Any] = {
        "name": name,
        "urls": (f"{server.url}/{name}",),
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
    }
    return Remote(**{**given, **changes})


def test_files_are_downloaded_once_and_whole(server: Server, tmp_path: Path) -> None:
    one, two = RNG.bytes(700_000), b"two"
    target = tmp_path / "data" / "set"
    fetch([remote(server, one, "one.gz"), remote(server, two, "two")], target, plain_http=True)
    assert (target / "one.gz").read_bytes() == one
    assert (target / "two").read_bytes() == two
    assert left_over(target.parent) == ["set"]
    assert server.asked == ["/one.gz", "/two"]
    assert target.stat().st_mode & 0o777 == 0o755
    assert [(target / name).stat().st_mode & 0o777 for name in ("one.gz", "two")] == [0o644, 0o644]


def test_what_is_sent_encoded_is_not_decoded(server: Server, tmp_path: Path) -> None:
    content = gzip.compress(b"idx" * 1000)
    server.headers["/x.gz"] = {"Content-Encoding": "gzip"}
    fetch([remote(server, content, "x.gz")], tmp_path / "set", plain_http=True)
    assert (tmp_path / "set" / "x.gz").read_bytes() == content


def test_archives_become_the_folder(server: Server, tmp_path: Path) -> None:
    archive = tar(tmp_path / "set.tar.gz", {"cifar/a.bin": b"a" * 1000, "cifar/readme": b"r"}).read_bytes()
    target = tmp_path / "data" / "cifar"
    packed = remote(server, archive, "set.tar.gz", archive_of="cifar", unpacked_bytes=2000)
    fetch([packed], target, plain_http=True)
    assert left_over(target) == ["a.bin", "readme"]
    assert left_over(target.parent) == ["cifar"]
    for changes, message in (
        ({"archive_of": "mnist"}, r"set\.tar\.gz holds no folder mnist"),
        ({"unpacked_bytes": 900}, "holds more than the bytes allowed"),
    ):
        with pytest.raises(UsageError, match=message):
            fetch(
                [remote(server, archive, "set.tar.gz", **{"archive_of": "cifar", "unpacked_bytes": 2000, **changes})],
                tmp_path / "other" / "x",
                plain_http=True,
            )
        assert left_over(tmp_path / "other") == []


def test_downloads_that_are_not_right(server: Server, tmp_path: Path) -> None:
    content = RNG.bytes(300_000)
    server.headers["/cut"] = {"Content-Length": "300000"}
    server.headers["/out"] = {"Location": "ftp://localhost/x"}
    server.headers["/around"] = {"Location": "/around"}
    target = tmp_path / "data" / "set"
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    for wrong, message in (
        (remote(server, flipped, "file", sha256=hashlib.sha256(content).hexdigest()), "not the file with the SHA-256"),
        (
            remote(server, content[:-1], "short", size_bytes=300_000),
            "the server sent 299999 of the file's 300000 bytes",
        ),
        (remote(server, content + b"more", "long", size_bytes=300_000), "sends more than the 300000 bytes"),
        (
            remote(server, content[:1000], "cut", size_bytes=300_000),
            "the connection broke after|the server sent 1000 of",
        ),
        (remote(server, content, "x", urls=(f"{server.url}/absent",)), "404"),
        (remote(server, content, "out"), r"the address leads to 'ftp://localhost/x'; allowed: https"),
        (remote(server, content, "around"), "redirect"),
        (remote(server, content, "y", urls=("http://localhost:1/y",)), "refused|Max retries"),
        (remote(server, content, "z", urls=("file:///etc/passwd",)), r"leads to 'file:///etc/passwd'; allowed: https"),
    ):
        with pytest.raises(
            UsageError, match=rf"{wrong.name} \(.* [KM]iB\) could not be downloaded: .*({message}).*DEEP5_DATA"
        ):
            fetch([wrong], target, plain_http=True)
        assert left_over(target.parent) == []


def test_plain_http_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the address leads to 'http://localhost:\d+/file\.bin'; allowed: https"):
        fetch([remote(server, b"abc")], tmp_path / "set")
    assert server.asked == []


def test_the_next_address_is_asked(server: Server, tmp_path: Path) -> None:
    content = b"content"
    server.files["/wrong"] = b"kontent"
    given = remote(server, content, urls=(f"{server.url}/absent", f"{server.url}/wrong", f"{server.url}/file.bin"))
    fetch([given], tmp_path / "set", plain_http=True)
    assert (tmp_path / "set" / "file.bin").read_bytes() == content
    assert server.asked == ["/absent", "/wrong", "/file.bin"]


def test_a_download_that_is_killed_leaves_no_data_set(server: Server, tmp_path: Path) -> None:
    """The second file never ends."""
    good, content = remote(server, b"good", "good"), RNG.bytes(100_000)
    server.headers["/slow"] = {"Content-Length": "100000000"}
    slow = remote(server, content, "slow", size_bytes=100_000_000)
    program = (
        "import sys; from pathlib import Path; from deep5.training.downloads import Remote, fetch\n"
        f"fetch([{good!r}, {slow!r}], Path(sys.argv[1]), plain_http=True)"
    )
    pause = threading.Event()
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "data" / "set")], stderr=subprocess.PIPE)
    try:
        for _ in range(600):
            if "/slow" in server.asked:
                break
            pause.wait(0.05)
        process.kill()
    finally:
        process.communicate(timeout=60)
    assert "/slow" in server.asked
    assert not (tmp_path / "data" / "set").exists()
    # Leftover files do not disturb another attempt.
    fetch([good], tmp_path / "data" / "set", plain_http=True)
    assert left_over(tmp_path / "data" / "set") == ["good"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    path = tmp_path_factory.mktemp("certificate") / "both.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(path), "-out", f"{path}.crt"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


def test_over_https(certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """With full checks: the complete path of a data set from an archive over https to samples, and again from disk."""
    records = RNG.integers(0, 10, (10, 3073), dtype=np.uint8)
    members = {f"cifar-10-batches-bin/data_batch_{number}.bin": records[number].tobytes() for number in range(1, 6)}
    archive = tar(tmp_path / "made.tar.gz", {**members, "cifar-10-batches-bin/test_batch.bin": records.tobytes()})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    secure = Server(context)
    try:
        changed = {"archive_of": "cifar-10-batches-bin", "unpacked_bytes": 100_000}
        given = remote(secure, archive.read_bytes(), "made.tar.gz", **changed)
        monkeypatch.setattr(cifar_module, "_CIFAR10", given)
        with pytest.raises(UsageError, match=r"made\.tar\.gz .*could not be downloaded.*certificate"):
            cifar10()
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", f"{certificate}.crt")
        down = remote(secure, b"x", "down")
        secure.headers["/down"] = {"Location": f"{server.url}/down"}
        with pytest.raises(UsageError, match=r"the address leads to 'http://localhost:\d+/down'; allowed: https"):
            fetch([down], tmp_path / "set")
        assert server.asked == []
        errors = io.StringIO()
        monkeypatch.setattr(sys, "stderr", errors)
        splits = cifar10(pixels="uint8")
        assert errors.getvalue() == (
            f"cifar10: downloading {size(given.size_bytes)} to {download_folder() / 'cifar-10-batches-bin'}; "
            "set DEEP5_DATA if a folder already holds it\n"
        )
        np.testing.assert_array_equal(splits.train.batch(np.arange(5))["label"], records[1:6, 0])
        asked = len(secure.asked)
        cifar10()
        assert len(secure.asked) == asked
        assert errors.getvalue().count("\n") == 1
    finally:
        secure.close()


def test_where_data_sets_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folders() == (tmp_path / "cache" / "data",)
    monkeypatch.setenv("DEEP5_DATA", str(tmp_path / "mine"))
    assert data_folders() == (tmp_path / "mine", tmp_path / "cache" / "data")
    (tmp_path / "cache" / "data" / "set").mkdir(parents=True)
    assert find_or_fetch("set", "a set", [], folder=None, download=False) == tmp_path / "cache" / "data" / "set"
    (tmp_path / "mine" / "set").mkdir(parents=True)
    assert find_or_fetch("set", "a set", [], folder=None, download=False) == tmp_path / "mine" / "set"
    assert find_or_fetch("set", "a set", [], folder=str(tmp_path), download=False) == tmp_path


def test_without_pooch(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingDependency, match=r"needs the package 'pooch'.*remedy: pip install 'deep5\[data\]'"):
        fetch([remote(server, b"abc")], tmp_path / "set", plain_http=True)
    assert left_over(tmp_path) == []


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot be written .*remedy: set DEEP5_CACHE"):
        fetch([remote(server, b"abc")], tmp_path / "file" / "set", plain_http=True)


def test_a_bar_on_a_terminal(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "FIRST_S", 0.0)
    fetch([remote(server, RNG.bytes(600_000))], tmp_path / "set", plain_http=True)
    assert "file.bin" in screen.getvalue()
    assert "of 586 KiB" in screen.getvalue()


def test_a_server_that_only_pretends(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_PATIENCE_S", -1.0)
    monkeypatch.setattr(downloads, "_SLOWEST_BYTES_PER_S", 1e15)
    with pytest.raises(UsageError, match=r"the server sent \d+ bytes in \d+ s"):
        fetch([remote(server, RNG.bytes(600_000))], tmp_path / "set", plain_http=True)


@pytest.mark.parametrize("old", [False, True])
def test_a_server_that_sends_a_byte_at_a_time(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    """The error comes long before a block is full: at 100 bytes a second that would take most of an hour."""
    import urllib3

    if old:  # urllib3 before 2.2
        monkeypatch.delattr(urllib3.response.HTTPResponse, "read1", raising=False)
        monkeypatch.delattr(urllib3.response.BaseHTTPResponse, "read1", raising=False)
        monkeypatch.setattr(downloads, "_SMALL_BLOCK", 20)
    server.pause_s = 0.01
    monkeypatch.setattr(downloads, "_PATIENCE_S", 0.3)
    with pytest.raises(UsageError, match=r"the server sent \d\d? bytes in \d s"):
        fetch([remote(server, RNG.bytes(300_000))], tmp_path / "set", plain_http=True)
    monkeypatch.setattr(downloads, "_SLOWEST_BYTES_PER_S", 0.1)  # below the server's rate
    fetch([remote(server, b"eleven byte" * 6, "short")], tmp_path / "set", plain_http=True)
    assert (tmp_path / "set" / "short").read_bytes() == b"eleven byte" * 6


def test_pinned_files_are_https_and_whole() -> None:
    from deep5.training.datasets import idx

    archives, files = (cifar_module._CIFAR10, cifar_module._CIFAR100), (*idx._MNIST, *idx._FASHION)
    assert len(files) == 8
    for given in (*archives, *files):
        assert given.size_bytes > 4000
        assert len(bytes.fromhex(given.sha256)) == 32
        assert given.urls
        assert all(url.startswith("https://") and url.endswith(f"/{given.name}") for url in given.urls)
    for given in archives:
        # 60 000 records of 3073 or 3074 bytes, and lists of names.
        assert given.size_bytes < 60_000 * 3074 < given.unpacked_bytes
