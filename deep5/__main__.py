"""`python -m deep5` is `deep5`."""

from deep5.cli.main import main

if __name__ == "__main__":
    main()
