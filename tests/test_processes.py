"""Processes that find each other, with real processes on this machine; who does not come is named in time."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from remem_jax.errors import RememError
from remem_jax.processes import Place, Processes, check_tensor_axis, find_place
from tests.several_processes import START, free_address

JOIN = """
import sys
from remem_jax.errors import RememError
from remem_jax.processes import Processes, start
address, count, index, timeout = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
try:
    start(Processes(address, count, index, timeout))
except RememError as error:
    print(f"remem: error: {error}")
    sys.exit(2)
import jax
import numpy as np
from jax.experimental import multihost_utils
total = multihost_utils.process_allgather(np.int32(10 + jax.process_index())).sum()
print(jax.process_index(), jax.process_count(), len(jax.devices()), int(total))
"""

# Comes to the meeting and to JAX, but never to the first exchange.
STAND_ASIDE = """
import sys, time
import jax
from remem_jax.processes import Place, meet
place = Place(sys.argv[1], 2, 1)
meet(place, 60.0)
jax.distributed.initialize(place.coordinator, 2, 1, cluster_detection_method="deactivate")
jax.devices()
time.sleep(300)
"""


def launch(code: str, *arguments: object) -> subprocess.Popen:
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "TPU_", "JAX_"))
    }
    environment = plain | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process: subprocess.Popen) -> tuple[int, str]:
    """Exit status and standard output."""
    try:
        out, error = process.communicate(timeout=200)
    finally:
        process.kill()
    assert "Traceback" not in error, error
    lines = [line for line in out.splitlines() if not line.startswith("[Gloo]")]  # which it prints to standard output
    return process.returncode, "\n".join(lines)


def test_two_processes_with_two_devices_each_become_one_program():
    address = free_address()
    first, second = (launch(JOIN, address, 2, index, 120) for index in (0, 1))
    assert said(first) == (0, "0 2 4 21")
    assert said(second) == (0, "1 2 4 21")


def test_a_process_that_never_comes_is_named_to_all_that_came():
    address, began = free_address(), time.monotonic()
    processes = [launch(JOIN, address, 4, index, 8) for index in (0, 2)]
    expected = (
        "remem: error: processes: 2 of 4 came within 8 seconds, missing: 1, 3; see whether they were started and their "
        f"logs, whether they reach {address}, and processes.count (1 to run alone)"
    )
    assert [said(process) for process in processes] == [(2, expected)] * 2
    assert time.monotonic() - began < 100


def test_processes_without_process_0_say_where_they_looked_for_it():
    address = free_address()
    status, text = said(launch(JOIN, address, 2, 1, 2))
    assert status == 2
    assert text.startswith(f"remem: error: processes: process 1 of 2 did not reach process 0 at {address} within 2 sec")


def test_two_processes_of_one_index_and_two_counts_are_told():
    address = free_address()
    processes = [launch(JOIN, address, 3, index, 60) for index in (0, 1, 1)]
    answers = [said(process) for process in processes]
    assert answers == [(2, "remem: error: processes: two processes have the index 1: give each its own, from 0")] * 3
    address = free_address()
    processes = [launch(JOIN, address, count, index, 60) for count, index in ((2, 0), (3, 1))]
    answers = [said(process) for process in processes]
    assert answers == [(2, "remem: error: processes: process 0 expects 2 processes, process 1 3")] * 2


def test_a_first_exchange_that_never_ends_is_given_up_with_one_line():
    address = free_address()
    waiting, aside = launch(JOIN, address, 2, 0, 12), launch(STAND_ASIDE, address)
    try:
        _, error = waiting.communicate(timeout=200)
    finally:
        waiting.kill()
        aside.kill()
        aside.communicate()
    lines = [line for line in error.splitlines() if line.startswith("remem: error")]
    assert waiting.returncode == 2 and len(lines) == 1, error
    assert "process 0 of 2 waited 1" in lines[0] and "for the first exchange between devices" in lines[0]


SLURM = {
    "SLURM_JOB_ID": "70000",
    "SLURM_STEP_NODELIST": "node[07-09]",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_NODES": "3",
}


def clean(monkeypatch, values: dict[str, str]) -> dict[str, str]:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "TPU_", "JAX_C", "JAX_N"))]:
        monkeypatch.delenv(name)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values


def test_slurm_tells_each_process_its_place(monkeypatch):
    # JAX's port: 61440 + 70000 modulo 4096 = 61440 + 368
    found = find_place(Processes(), clean(monkeypatch, SLURM))
    assert found == Place("node07:61808", 3, 2, (0,))
    given = find_place(Processes(), clean(monkeypatch, SLURM | {"JAX_LOCAL_DEVICE_IDS": "0,1,2,3"}))
    assert given == Place("node07:61808", 3, 2, (0, 1, 2, 3))


def test_a_cluster_that_says_half_is_told_with_the_way_to_run_alone(monkeypatch):
    half = SLURM | {"SLURM_NTASKS": "several"}
    with pytest.raises(RememError, match=r"expected to learn from slurm who takes part, .* set processes\.count=1"):
        find_place(Processes(), clean(monkeypatch, half))
    assert find_place(Processes(count=1), half) is None


def test_one_process_starts_nothing(monkeypatch):
    assert find_place(Processes(), clean(monkeypatch, {})) is None
    assert find_place(Processes(count=1), clean(monkeypatch, {})) is None
    assert find_place(Processes(), clean(monkeypatch, SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"})) is None


def test_settings_go_before_variables_and_halves_are_refused(monkeypatch):
    variables = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
    clean(monkeypatch, {})
    assert find_place(Processes(), variables) == Place("a:1", 4, 3)
    assert find_place(Processes("b:2", 5, 0), variables) == Place("b:2", 5, 0)
    with pytest.raises(RememError, match=r"found no processes\.count and no processes\.index"):
        find_place(Processes("b:2"), {})
    with pytest.raises(RememError, match=r"processes\.index: expected a number from 0 to 3, found 4"):
        find_place(Processes(index=4), variables)
    with pytest.raises(RememError, match="JAX_PROCESS_ID: expected a whole number, found 'x'"):
        find_place(Processes(), variables | {"JAX_PROCESS_ID": "x"})
    with pytest.raises(RememError, match="JAX_LOCAL_DEVICE_IDS: expected whole numbers with commas, found '0;1'"):
        find_place(Processes(), variables | {"JAX_LOCAL_DEVICE_IDS": "0;1"})
    with pytest.raises(RememError, match="coordinator: expected host:port, found 'somewhere'"):
        Processes("somewhere")


def mesh_of(owners) -> SimpleNamespace:
    """A mesh `[data, fsdp, tensor]` whose devices belong to these processes."""
    devices = np.empty(np.shape(owners), object)
    for at in np.ndindex(devices.shape):
        devices[at] = SimpleNamespace(process_index=int(np.asarray(owners)[at]))
    return SimpleNamespace(devices=devices)


def test_a_tensor_axis_may_not_span_processes():
    check_tensor_axis(mesh_of([[[0, 0], [1, 1]]]))
    check_tensor_axis(mesh_of([[[0], [0], [1], [1]]]))
    with pytest.raises(RememError, match=r"tensor 4 spans the processes 0, 1; .* which has 2 devices"):
        check_tensor_axis(mesh_of([[[0, 0, 1, 1]]]))


TOGETHER = """
import os, signal, time
from pathlib import Path
import numpy as np
from remem_jax.errors import RememError
from remem_jax.mesh import Placement, make_mesh
from remem_jax.processes import ToldToAll, leaving_alone, together
from remem_jax.rl.stop import Stopped, StopRequest
from remem_jax.rl.trainer import _check_shared

place, folder = Placement(make_mesh()), Path(arguments[0])

def told(function):
    try:
        function()
    except ToldToAll as error:
        print(error)

def only_in(failing, text):
    with together(place):
        if process in failing:
            raise RememError(text)

told(lambda: only_in((), "never"))
told(lambda: only_in((1,), "the disk is full"))
told(lambda: only_in((0, 1), "the disk is full"))
told(lambda: _check_shared(folder, place))
own = folder / str(process)
own.mkdir()
told(lambda: _check_shared(own, place))

with StopRequest(several=True) as stop:
    checks = 0
    try:
        while True:
            stop.check()
            checks += 1
            if process == 1 and checks == 5:
                os.kill(os.getpid(), getattr(signal, arguments[1]))
            time.sleep(0.02 + 0.03 * process)
            place.agree(np.array([checks]))
    except Stopped:
        print(f"stopped at the same check: {len(set(place.share(checks))) == 1}, 5 or later: {checks >= 5}")

with leaving_alone(place):
    told(lambda: only_in((0,), "told before leaving"))
    if process == 1:
        raise RememError("I leave alone")
    place.share("who is there?")
"""


@pytest.mark.parametrize("sent", ["SIGTERM", "SIGINT"])
def test_what_one_process_cannot_do_and_a_signal_to_one_end_all_at_the_same_place(tmp_path, sent):
    address = free_address()
    processes = [launch(START + TOGETHER, address, 2, process, tmp_path, sent) for process in (0, 1)]
    outputs = [process.communicate(timeout=200) for process in processes]
    expected = [
        "process 1: the disk is full",
        "the disk is full",
        f"process 1: run_dir: expected a directory that all processes share, found in {tmp_path}/1 nothing of what "
        "process 0 wrote there",
        "stopped at the same check: True, 5 or later: True",
        "process 0: told before leaving",
    ]
    for out, error in outputs:
        assert [line for line in out.splitlines() if not line.startswith("[Gloo]")] == expected, error
    assert [process.returncode for process in processes] == [1, 2]
    assert "remem: process 0 ends; if another ended before it, see why there" in outputs[0][1]
    assert outputs[1][1].splitlines()[-1] == "remem: error: process 1: I leave alone"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["0", "1"]  # no mark is left
