"""The one exception for what a user can mend: bad input, a bad file, a setting that does not fit.

The command line prints its message as a single `remem: error: ...` line and exits with status 2.
"""


class RememError(Exception):
    """Bad user input. The message is one line: what was expected, what was found, what to do."""
