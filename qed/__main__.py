"""`python -m qed` is `qed`."""

from qed.cli.main import main

if __name__ == "__main__":
    main()
