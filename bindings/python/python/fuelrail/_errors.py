"""The errors of the engine, by what can be done about them."""

import errno


class Error(Exception):
    """What the engine reports. Its text says what happened, to which object, and what to do.

    Attributes
    ----------
    kind : str
        What kind of error it is, one word: `"usage"`, `"budget"`, `"network"`, `"not_found"`, `"denied"`, `"undecodable"`, …
    object : str or None
        The key of the object it is about.
    hint : str or None
        What to do about it.
    attempts : int
        How many attempts were made; 0 where it is not about attempts.
    """

    __module__ = "fuelrail"

    kind: str
    object: str | None
    hint: str | None
    attempts: int

    def __init__(self, message="", kind="usage", object=None, hint=None, attempts=0):
        # OSError takes a second argument and those after it for its own.
        super().__init__(message)
        self.args = message, kind, object, hint, attempts
        self.kind, self.object, self.hint, self.attempts = kind, object, hint, attempts
        if isinstance(self, OSError):
            self.strerror, self.filename = message, object

    def __str__(self):
        return self.args[0]

    def __repr__(self):
        return f"{type(self).__name__}({self.args[0]!r})"


class UsageError(Error, ValueError):
    """A wrong argument, setting, variable or state."""

    __module__ = "fuelrail"


class BudgetError(Error, MemoryError):
    """The memory limit cannot hold what is asked for."""

    __module__ = "fuelrail"


class NetworkError(Error, OSError):
    """The server could not be reached, failed, or did not answer well, in all attempts."""

    __module__ = "fuelrail"


class NotFoundError(Error, FileNotFoundError):
    """There is no such object, bucket or folder."""

    __module__ = "fuelrail"

    errno = errno.ENOENT


class DeniedError(Error, PermissionError):
    """Credentials are missing, refused or expired."""

    __module__ = "fuelrail"

    errno = errno.EACCES


_CLASSES = {
    "usage": UsageError,
    "budget": BudgetError,
    "not_found": NotFoundError,
    "denied": DeniedError,
    "expired": DeniedError,
    **dict.fromkeys(
        ["network", "throttled", "server", "truncated", "stalled", "protocol", "untrusted"], NetworkError
    ),
}


def of_kind(kind, message, object, hint, attempts):
    """The error of this kind."""
    return _CLASSES.get(kind, Error)(message, kind, object, hint, attempts)
