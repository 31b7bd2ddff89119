"""Data files of a distribution that deep5 does not import: given, installed, or in a wheel."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

from deep5.core.errors import UsageError
from deep5.core.files import absence, is_file, is_folder
from deep5.training.downloads import DataMissing, data_folders, given_path

__all__ = ["PackagedFiles"]


@dataclass(frozen=True, kw_only=True)
class PackagedFiles:
    """The data files of a distribution, which are read and never imported; it need not be installed.

    Attributes:
        what: The data set, for messages.
        title: What the files are, for messages.
        distribution: The distribution, and the folder of its files in `$DEEP5_DATA` and in the download folder.
        members: The paths of the files in the distribution.
        requirement: What `pip download` gets; empty: the distribution.
        largest_bytes: The largest allowed size of a file.
    """

    what: str
    title: str
    distribution: str
    members: tuple[str, ...]
    requirement: str = ""
    largest_bytes: int = 1 << 26

    def read(self, path: str | None) -> dict[str, bytes]:
        """The content of each file in the order of `members`, by its name, which begins with that of its wheel.

        Args:
            path: A wheel; or the file, if there is one, else a folder with the files. None: the files of the installed
                distribution, else files or a wheel in the distribution's folder of `$DEEP5_DATA` or of the download
                folder.

        Raises:
            DataMissing: They are in none of these places.
            UsageError: A given file cannot be read, is too large, or is no wheel with the files.
        """
        if path is not None:
            return self._given(given_path(self.what, path, "path"))
        if (installed := self._installed()) is not None:
            return self._plain(installed)
        for place in data_folders():
            folder = place / self.distribution
            own = [folder / name for name in self._names]
            if all(is_file(each) for each in own):
                return self._plain(own)
            if (wheel := self._wheel(folder)) is not None:
                return self._archived(wheel)
        places = [str(place / self.distribution) for place in data_folders()]
        raise DataMissing(
            f"the data set {self.what} needs {self.title}, which is not there: no installed distribution "
            f"{self.distribution}, and neither {' and '.join(self._names)} nor a wheel in {' or '.join(places)}; "
            f"remedy: pip download --no-deps --dest {places[0]} {self.requirement or self.distribution}, or path= its "
            f"{'file' if len(self.members) == 1 else 'wheel'}"
        )

    @property
    def _names(self) -> list[str]:
        return [PurePosixPath(member).name for member in self.members]

    def _given(self, path: Path) -> dict[str, bytes]:
        allowed = f"allowed: {' and '.join(self._names)}, or a wheel of {self.distribution}"
        if len(self.members) > 1 and is_folder(path):
            own = [path / name for name in self._names]
            if absent := [each.name for each in own if not is_file(each)]:
                raise UsageError(f"{self.what}: the folder {path} has no {' and no '.join(absent)}; {allowed}")
            return self._plain(own)
        if not is_file(path):
            raise UsageError(f"{self.what}: the file {path} {absence(path)}; {allowed}")
        if path.suffix == ".whl":
            return self._archived(path)
        if len(self.members) > 1:
            raise UsageError(f"{self.what}: got the file {path}; allowed: a folder with {allowed[9:]}")
        return self._plain([path])

    def _installed(self) -> list[Path] | None:
        """The files that the installed distribution lists."""
        try:
            listed = metadata.files(self.distribution) or []
        except metadata.PackageNotFoundError:
            return None
        located = {each.as_posix(): Path(str(each.locate())) for each in listed if each.as_posix() in self.members}
        found = [located[member] for member in self.members if member in located and is_file(located[member])]
        return found if len(found) == len(self.members) else None

    def _wheel(self, folder: Path) -> Path | None:
        wheels = sorted(folder.glob(f"{self.distribution}-*.whl")) if is_folder(folder) else []
        if len(wheels) > 1:
            raise UsageError(
                f"{self.what}: the folder {folder} has {len(wheels)} wheels; allowed: one; remedy: path= one of them"
            )
        return wheels[0] if wheels else None

    def _plain(self, paths: list[Path]) -> dict[str, bytes]:
        found = {}
        for path in paths:
            try:
                self._check_size(path, path.stat().st_size)
                found[path.name] = path.read_bytes()
            except OSError as error:
                raise UsageError(f"{self.what}: {path} cannot be read ({error.strerror or error})") from error
        return found

    def _archived(self, path: Path) -> dict[str, bytes]:
        found, member = {}, ""
        try:
            with zipfile.ZipFile(path) as archive:
                for member in self.members:
                    self._check_size(path, archive.getinfo(member).file_size)
                    found[f"{path.name}/{member}"] = archive.read(member)
        except KeyError as error:
            raise UsageError(f"{self.what}: {path} has no {member}; allowed: a wheel of {self.distribution}") from error
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise UsageError(f"{self.what}: {path} is not a wheel ({error}); remedy: download it again") from error
        except OSError as error:
            raise UsageError(f"{self.what}: {path} cannot be read ({error.strerror or error})") from error
        return found

    def _check_size(self, path: Path, size: int) -> None:
        if size > self.largest_bytes:
            raise UsageError(
                f"{self.what}: a file in {path} has {size} bytes; allowed: at most {self.largest_bytes}; remedy: the "
                f"files of {self.title}"
            )
