"""The one exception for input that cannot be used."""


class InputError(ValueError):
    """Input that cannot be used.

    Its text is one line that names what is wrong, where, and what is allowed. The command line
    prints it without a traceback and exits with status 2.
    """


def require(condition: object, message: str) -> None:
    """Raise `InputError(message)` unless `condition` is true."""
    if not condition:
        raise InputError(message)
