"""`python -m fedprox`, the command line."""

from fedprox.cli import main

if __name__ == "__main__":
    main()
