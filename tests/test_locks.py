"""A folder is held by one process at a time, and let go when that process ends."""

import os
import signal
import subprocess
import sys

import pytest

from remem_jax.errors import RememError
from remem_jax.locks import lock_folder

HOLD = "import sys, time; from pathlib import Path; from remem_jax.locks import lock_folder\n"
HOLD += "lock_folder(Path(sys.argv[1]), 'busy'); print('held', flush=True); time.sleep(60)"


def test_a_folder_is_refused_while_it_is_held_and_free_when_it_is_closed(tmp_path):
    first = lock_folder(tmp_path, "busy")
    with pytest.raises(RememError, match=r"^busy$"):
        lock_folder(tmp_path, "busy")
    os.close(first)
    os.close(lock_folder(tmp_path, "busy"))


def test_a_killed_process_holds_nothing(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(RememError, match=r"^busy$"):
            lock_folder(tmp_path, "busy")
        other.send_signal(signal.SIGKILL)
        other.wait()
    os.close(lock_folder(tmp_path, "busy"))
