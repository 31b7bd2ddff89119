"""`python -m deep5` is `deep5`."""

from deep5.cli import main

if __name__ == "__main__":
    main()
