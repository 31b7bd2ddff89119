"""Error handling of commands: one message and one exit status."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

import click

from deep5.core.errors import Deep5Error, Ended, contained, described, suggestion
from deep5.core.terminal import plain

__all__ = ["errors", "fail", "reported"]

# Why a path cannot be used, as opposed to a disk that is full or broken.
_PATHS = {
    errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS,
}  # fmt: skip


@contextmanager
def errors(debug: bool, as_json: bool) -> Iterator[Callable[[str], None]]:
    """Convert every error to one clear message and an exit status; yields the function that prints.

    With `as_json`, a recipe's own output goes to standard error: standard output is one JSON document.
    """
    out, err = sys.stdout, sys.stderr
    try:
        _load_numpy()
        with redirect_stdout(sys.stderr) if as_json else nullcontext(), contained():
            yield lambda text: click.echo(text, file=out)
        out.flush()
    except Ended:
        raise
    except (Exception, KeyboardInterrupt) as error:
        sys.stdout, sys.stderr = out, err
        if debug:
            import traceback

            traceback.print_exception(error)
        fail(*reported(error), as_json)
    finally:
        # A recipe may have replaced them by what cannot be written, or flushed at the end.
        sys.stdout, sys.stderr = out, err


def _load_numpy() -> None:
    """Load NumPy, which every command needs, once here, so that an interruption waits until it is loaded completely."""
    from deep5.core.plugins import uninterrupted

    with uninterrupted():
        import numpy  # noqa: F401


def reported(error: BaseException) -> tuple[str, int]:
    """Message and exit status of an error."""
    if isinstance(error, Deep5Error):
        return str(error), error.exit_status
    if isinstance(error, KeyboardInterrupt):
        return str(error) or "interrupted", 130
    if isinstance(error, click.NoSuchOption):
        from deep5.cli.unknown_option import unknown_option

        return unknown_option(error), 2
    if isinstance(error, click.BadParameter) and error.param is not None:
        kind: Any = error.param.type
        if isinstance(kind, click.Choice):
            got = error.message.partition(" is not one of ")[0].strip("'")
            return f"{error.format_message().rstrip('.')}{suggestion(got, kind.choices)}", 2
    if isinstance(error, click.ClickException):
        return error.format_message(), 2
    if isinstance(error, OSError) and error.filename is not None and error.errno in _PATHS:
        name = Deep5Error(str(error.filename))  # without the middle of a long name
        return f"{name}: {error.strerror}; allowed: a path that the system can open; remedy: another path", 2
    # What `Path.resolve` raises for a link that leads back to itself.
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):
        return f"{error}; allowed: a path that the system can open; remedy: another path", 2
    if isinstance(error, FileNotFoundError) and error.filename is None and not _has_working_directory():
        return "the working directory was removed; allowed: a folder that exists; remedy: cd to another folder", 2
    if isinstance(error, MemoryError):
        return "there is too little memory; allowed: what the machine and ulimit -v give; remedy: allow more", 3
    message = Deep5Error(described(error))
    return f"unexpected {message}; remedy: run again with --debug and report what it shows", 3


def _has_working_directory() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def fail(message: str, status: int, as_json: bool) -> NoReturn:
    """Exit with a message on standard error, also as JSON if requested.

    As everywhere after a recipe's code, SystemExit is raised directly: the recipe may have replaced `sys.exit`.
    """
    click.echo(f"deep5: {plain(message)}", err=True)
    if as_json:
        click.echo(json.dumps({"error": message, "exit_status": status}))
    raise SystemExit(status)
