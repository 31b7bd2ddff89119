"""The program `deep5`, also as `python -m deep5`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Import the command line and run it; an interruption ends it without a traceback also while it is imported."""
    try:
        from deep5.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("deep5: interrupted\n")
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
