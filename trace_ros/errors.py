"""The one exception that a user is meant to read."""


class TraceError(Exception):
    """A fault in what the user gave: a file, a name, a value.

    The text is a single line that says what was wrong, where, and what to do about it. The command line prints it
    without a traceback and exits with 2; the nodes log it and refuse the transition.
    """


class FallError(TraceError):
    """A simulated robot that fell: no walk can be had of this course and seed."""
