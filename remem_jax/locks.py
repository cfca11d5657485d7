"""A folder for one process at a time: a run's checkpoints, an evaluation's results, a set that is being built."""

import fcntl
import os
from pathlib import Path

from remem_jax.errors import RememError


def lock_folder(folder: Path, busy: str) -> int:
    """A descriptor that holds `folder` until it is closed or this process ends, however it ends.

    On a file system without locks nothing is held: two processes at once are then the user's to avoid.

    Raises:
        RememError: another process holds it; the message is `busy`.
        OSError: the folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RememError(busy) from None
    except OSError:
        pass
    return descriptor
