"""Ahead-of-time plans: the programs of a run compiled for a named TPU slice, on a machine without one."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from remem_jax.errors import RememError


def make_plan(
    config: str,
    overrides: Sequence[str] = (),
    *,
    topology: str | None = None,
    devices: int | None = None,
    memory_gib: float | None = None,
    chunks: int = 6,
    fast: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """What the compiler says of every function of a run, and what follows: does it fit, what does a step cost.

    Args:
        config: YAML file of `remem train`; `overrides` are `key=value` over it.
        topology: a slice such as `v5e:8x8`; or
        devices: so many devices of any kind, without a roofline; `memory_gib` is what one holds.
        chunks: memory turns of a question.
        fast: the compiler searches less; memory then differs a little from what the run will take.
        tell: given a line before each function is compiled.

    Raises:
        RememError: whatever the run would refuse, libtpu missing, an unknown slice.
    """
    if (topology is None) == (devices is None):
        raise RememError("plan: expected --topology such as v5e:8x8, or --devices N, and not both")
    if devices is not None and devices < 1:
        raise RememError(f"devices: expected a number of at least 1, found {devices}")
    if chunks < 1:
        raise RememError(f"chunks: expected a number of at least 1, found {chunks}")
    if memory_gib is not None and not (devices and memory_gib > 0):
        raise RememError(f"memory-gib: expected a number above 0, with --devices, found {memory_gib}")
    from remem_jax.plan.known import chip_of

    if topology is not None:
        chip_of(topology)
    request = {
        "config": config,
        "overrides": list(overrides),
        "topology": topology,
        "chunks": chunks,
        "gib": memory_gib,
        "fast": fast,
    }
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    flags = re.sub(r"--xla_force_host_platform_device_count=\S+", "", environment.get("XLA_FLAGS", ""))
    environment["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices or 1}".strip()
    with tempfile.TemporaryFile("w+") as noise:
        child = subprocess.Popen(
            [sys.executable, "-m", "remem_jax.plan.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env=environment,
            text=True,
        )
        try:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(json.dumps(request))
            child.stdin.close()
            for line in child.stdout:
                answer = json.loads(line)
                if "progress" in answer:
                    tell(answer["progress"])
                elif "error" in answer:
                    raise RememError(answer["error"])
                else:
                    return answer["plan"]
            noise.seek(0)
            last = [line.strip() for line in noise if line.strip()][-1:] or ["it printed nothing"]
            raise RememError(f"the compiler's process ended with status {child.wait()}: {last[0][:300]}")
        finally:
            child.kill()
            child.wait()
