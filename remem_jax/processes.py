"""Several processes as one program: who takes part, a meeting with a time limit, `jax.distributed`, a first collective.

JAX ends the whole program with a stack trace where a process is missing, so all of them meet at plain sockets first:
process 0 counts who came within the limit and tells everybody who did not. Later, what one process cannot do ends all.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from remem_jax.errors import RememError
from remem_jax.settings import check_types, expect

_GREETING = "remem_jax"
_RETRY_SECONDS = 0.2
_LONGEST_LINE = 1 << 20


@dataclass(frozen=True)
class Processes:
    """How the processes of a run find each other; on Cloud TPU and under SLURM nothing needs to be set."""

    coordinator: str | None = None
    """host:port of process 0; none: JAX_COORDINATOR_ADDRESS, else what Cloud TPU, SLURM or MPI tell."""
    count: int | None = None
    """How many processes there are; none: JAX_NUM_PROCESSES, else as above."""
    index: int | None = None
    """Number of this process, from 0, so given on the command line; none: JAX_PROCESS_ID, else as above."""
    timeout: float = 300.0
    """Seconds in which all of them must have come."""

    def __post_init__(self):
        check_types(self)
        if self.coordinator is not None:
            _address(self.coordinator)
        if self.count is not None:
            expect(self.count >= 1, "count", "a number of at least 1", self.count)
        if self.index is not None:
            expect(self.index >= 0, "index", "a number of at least 0", self.index)
        expect(self.timeout > 0, "timeout", "a number of seconds above 0", self.timeout)


@dataclass(frozen=True)
class Place:
    """One process among all."""

    coordinator: str
    count: int
    index: int
    local_devices: tuple[int, ...] | None = None
    """Devices of the machine that this process may use; None: all."""


def start(settings: Processes) -> None:
    """Joins the processes of a run, before JAX computes anything; nothing happens where there is one, or they joined.

    Raises:
        RememError: who is told by halves, or a process did not come in time; it says which, and what to look at.
    """
    import jax
    from jax.experimental import multihost_utils

    if jax.distributed.is_initialized() or (place := find_place(settings, os.environ)) is None:
        return
    began = time.monotonic()
    meet(place, settings.timeout)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # says nothing to other platforms
    try:
        jax.distributed.initialize(
            place.coordinator,
            place.count,
            place.index,
            local_device_ids=place.local_devices,
            cluster_detection_method="deactivate",
            initialization_timeout=max(10, int(settings.timeout)),
        )
    except RuntimeError as error:
        raise RememError(f"processes: process {place.index} could not join: {' '.join(str(error).split())}") from None
    left = max(10.0, settings.timeout - (time.monotonic() - began))
    within(left, place, lambda: multihost_utils.sync_global_devices("remem_jax start"))


def find_place(settings: Processes, environment: Mapping[str, str]) -> Place | None:
    """This process among all, from settings, else JAX's variables, else the cluster's; None where it is alone.

    Raises:
        RememError: only some of address, count and index are known, or they contradict each other.
    """
    coordinator = settings.coordinator or environment.get("JAX_COORDINATOR_ADDRESS")
    count = settings.count if settings.count is not None else _number(environment, "JAX_NUM_PROCESSES")
    index = settings.index if settings.index is not None else _number(environment, "JAX_PROCESS_ID")
    local = _numbers(environment, "JAX_LOCAL_DEVICE_IDS")
    if count == 1 and index in (None, 0):
        return None
    if coordinator is None or count is None or index is None:
        coordinator, count, index, local = _cluster(coordinator, count, index, local, settings.timeout)
        values = {"coordinator": coordinator, "count": count, "index": index}
        if all(value is None for value in values.values()):
            return None
        missing = [f"processes.{name}" for name, value in values.items() if value is None]
        if missing:
            raise RememError(
                f"processes: expected coordinator, count and index together, found no {' and no '.join(missing)}: set "
                "them, or JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
            )
    assert coordinator is not None and count is not None and index is not None
    _address(coordinator)
    expect(count >= 1, "processes.count", "a number of at least 1", count)
    expect(0 <= index < count, "processes.index", f"a number from 0 to {count - 1}", index)
    return Place(coordinator, count, index, local) if count > 1 else None


def _cluster(coordinator, count, index, local, timeout: float):
    """What is not known yet, asked from SLURM, MPI or Cloud TPU as JAX does it.

    Not from Kubernetes: JAX would ask its server, which a pod that trains alone need not be allowed to.
    """
    from jax._src import clusters

    found, known = None, (clusters.OmpiCluster, clusters.SlurmCluster, clusters.GkeTpuCluster, clusters.GceTpuCluster)
    try:
        found = next((cluster for cluster in known if cluster.is_env_present()), None)
        if found is None:
            return coordinator, count, index, local
        detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
        coordinator, count, index, local = detect(coordinator, count, index, local, found.name, int(timeout))
    except (RuntimeError, ValueError, OSError) as error:
        raise RememError(
            f"processes: expected to learn from {found.name if found else 'the cluster'} who takes part, found "
            f"{' '.join(str(error).split())[:300]}: to run alone, set processes.count=1"
        ) from None
    return coordinator, count, index, tuple(local) if local is not None else None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    expect(text is None or text.isdecimal(), name, "a whole number", text)
    return None if text is None else int(text)


def _numbers(environment: Mapping[str, str], name: str) -> tuple[int, ...] | None:
    text = environment.get(name)
    expect(not text or text.replace(",", "").isdecimal(), name, "whole numbers with commas", text)
    return tuple(map(int, text.split(","))) if text else None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    expect(bool(host) and port.isdecimal() and 0 < int(port) < 65536, "coordinator", "host:port", text)
    return host.strip("[]"), int(port)


def meet(place: Place, timeout: float) -> None:
    """Returns in all processes once all have come; process 0 listens at the coordinator's port until then.

    Raises:
        RememError: in each process that came, where one did not within `timeout` seconds or two gave one index.
    """
    limit = time.monotonic() + timeout
    verdict = _receive_all(place, timeout, limit) if place.index == 0 else _ask(place, timeout, limit)
    if verdict:
        raise RememError(verdict)


def _receive_all(place: Place, timeout: float, limit: float) -> str:
    """Process 0: the verdict, which all that came are told too; empty when all is well."""
    _, port = _address(place.coordinator)
    came: dict[int, socket.socket] = {}
    verdict = ""
    try:
        with socket.create_server(("", port)) as server:
            while len(came) < place.count - 1 and not verdict and (left := limit - time.monotonic()) > 0:
                server.settimeout(left)
                try:
                    peer, _ = server.accept()
                    peer.settimeout(min(left, 5.0))
                    with peer.makefile("r", encoding="utf-8") as lines:
                        greeting, index, count = json.loads(lines.readline(_LONGEST_LINE))
                except (OSError, ValueError, TypeError):
                    continue  # time is up, or a stranger at the port
                if greeting != _GREETING:
                    peer.close()
                elif count != place.count:
                    verdict = f"processes: process 0 expects {place.count} processes, process {index} {count}"
                    _tell(peer, verdict)
                elif index in came or not 0 < index < place.count:
                    verdict = f"processes: two processes have the index {index}: give each its own, from 0"
                    _tell(peer, verdict)
                else:
                    came[index] = peer
    except OSError as error:
        raise RememError(
            f"processes: process 0 can't listen at port {port}: {error.strerror or error}; name another port in "
            "processes.coordinator"
        ) from None
    missing = [index for index in range(1, place.count) if index not in came]
    if not verdict and missing:
        shown = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        verdict = (
            f"processes: {len(came) + 1} of {place.count} came within {timeout:g} seconds, missing: {shown}; see "
            f"whether they were started and their logs, whether they reach {place.coordinator}, and processes.count "
            "(1 to run alone)"
        )
    for peer in came.values():
        _tell(peer, verdict)
    return verdict


def _tell(peer: socket.socket, verdict: str) -> None:
    with peer, contextlib.suppress(OSError):  # where it has gone, its absence shows at the next step
        peer.sendall((json.dumps(verdict) + "\n").encode())


def _ask(place: Place, timeout: float, limit: float) -> str:
    """Another process: tells process 0 that it came and waits for the verdict."""
    address, reason = _address(place.coordinator), "no answer"
    while (left := limit - time.monotonic()) > 0:
        try:
            with socket.create_connection(address, timeout=left) as peer:
                peer.sendall((json.dumps([_GREETING, place.index, place.count]) + "\n").encode())
                # Process 0 may have begun to wait later than this one: its limit counts, and it always answers.
                peer.settimeout(timeout + 10.0)
                with peer.makefile("r", encoding="utf-8") as lines:
                    if line := lines.readline(_LONGEST_LINE):
                        return json.loads(line)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
        time.sleep(min(_RETRY_SECONDS, max(left, 0.0)))
    return (
        f"processes: process {place.index} of {place.count} did not reach process 0 at {place.coordinator} within "
        f"{timeout:g} seconds ({reason}); see whether process 0 was started and its log, the address, and whether the "
        "port is open"
    )


def within(seconds: float, place: Place, collective) -> None:
    """Runs a collective; where it is not done in time, says so and ends the process, as nothing can call it off."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            collective()
        except BaseException as error:  # told by the main thread
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        print(
            f"remem: error: processes: process {place.index} of {place.count} waited {seconds:g} seconds for the first "
            "exchange between devices; all processes came, so see the logs of the others and whether the machines "
            "reach each other on all ports",
            file=sys.stderr,
            flush=True,
        )
        os._exit(2)
    if failed:
        raise RememError(
            f"processes: the first exchange between devices failed: {' '.join(str(failed[0]).split())[:400]}"
        )


class ToldToAll(RememError):
    """An error that every process raises at the same place, so that all of them leave in order."""


@contextlib.contextmanager
def together(placement: Any) -> Iterator[None]:
    """A part of a run that succeeds in all processes or in none: where one raises RememError, all raise its first.

    No exchange between processes may stand inside. With one process nothing is done.
    """
    if placement.processes == 1:
        yield
        return
    failure = None
    try:
        yield
    except RememError as error:
        failure = str(error)
    failures = placement.share(failure)
    first = next((process for process, text in enumerate(failures) if text is not None), None)
    if first is not None:
        where = "" if failures.count(failures[first]) == len(failures) else f"process {first}: "
        raise ToldToAll(where + failures[first])


@contextlib.contextmanager
def leaving_alone(placement: Any) -> Iterator[None]:
    """Where a process alone fails, says why and ends it at once: JAX would wait for the others, and they for it."""
    try:
        yield
    except ToldToAll:
        raise
    except BaseException as error:
        if placement.processes == 1:
            raise
        if isinstance(error, RememError):
            print(f"remem: error: process {placement.process}: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
            print(
                f"remem: process {placement.process} ends; if another ended before it, see why there", file=sys.stderr
            )
        sys.stderr.flush()
        os._exit(2 if isinstance(error, RememError) else 1)


def check_tensor_axis(mesh: Any) -> None:
    """Raises RememError where the tensor axis of a mesh spans processes: their rollouts would not be their own."""
    for row in mesh.devices.reshape(-1, mesh.devices.shape[-1]):
        owners = {device.process_index for device in row}
        if len(owners) > 1:
            each = min(sum(d.process_index == owner for d in mesh.devices.flat) for owner in owners)
            raise RememError(
                f"mesh: tensor {len(row)} spans the processes {', '.join(map(str, sorted(owners)))}; expected a tensor "
                f"axis inside one process, which has {each} devices"
            )
