"""`python -m fusebench`: the command line where the console script is not installed."""

from .cli.main import main

if __name__ == "__main__":
    main()
