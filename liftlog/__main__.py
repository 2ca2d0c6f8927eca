"""`python -m liftlog` is the `liftlog` command."""

from liftlog.cli.main import main

if __name__ == "__main__":
    main()
