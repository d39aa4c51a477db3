"""`python -m fedprox`, the command line."""

from _fedprox import main

if __name__ == "__main__":
    main()
