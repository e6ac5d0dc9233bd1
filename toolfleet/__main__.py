"""`python -m toolfleet` is the command line."""

from toolfleet.cli import main

if __name__ == "__main__":
    main()
