"""Runs a program in several processes that `jax.distributed` joins on this machine, each with fake CPU devices."""

import os
import socket
import subprocess
import sys
from pathlib import Path

START = """
import jax, sys
address, count, process = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
arguments = sys.argv[4:]
jax.config.update("jax_numpy_dtype_promotion", "strict")
if count > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, count, process)
"""


def free_address() -> str:
    """A port of this machine that nobody listened to a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def run_processes(program: str, *arguments: object, count: int = 2, devices: int = 2) -> list[str]:
    """What each process printed; `program` finds `process`, `count` and `arguments` set and JAX started.

    Args:
        devices: of each process.
    """
    flags = f"--xla_force_host_platform_device_count={devices} --xla_cpu_collective_call_terminate_timeout_seconds=600"
    root = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    address, started = free_address(), []
    for process in range(count):
        command = [sys.executable, "-c", START + program, address, str(count), str(process), *map(str, arguments)]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
        started.append(subprocess.Popen(command, env=environment, cwd=root, **pipes))  # pyright: ignore[reportCallIssue,reportArgumentType]
    try:
        told = [one.communicate(timeout=540) for one in started]
    finally:
        for one in started:
            one.kill()
    for one, (out, err) in zip(started, told, strict=True):
        assert one.returncode == 0, f"{out[-2000:]}\n{err[-6000:]}"
    # Gloo prints to standard output that it is connected.
    return ["".join(line for line in out.splitlines(True) if not line.startswith("[Gloo]")) for out, _ in told]
