"""Paths in a bucket beside those of this machine: `gs://bucket/file`, all else that fsspec opens, and `file://`.

What is read there is copied whole to this machine first, so that everything else meets ordinary files. A copy is named
by what the bucket says of its files, so none is ever out of date, and appears whole or not at all.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from remem_jax.errors import RememError

COPIES = "~/.cache/remem_jax/copies"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)  # `Path` makes one slash of two
_VERSION = ("size", "generation", "etag", "ETag", "md5Hash", "mtime", "LastModified", "created")


def url_of(path: str | Path) -> str | None:
    """`gs://bucket/file` where `path` is in a bucket, None where it is on this machine."""
    found = _URL.fullmatch(str(path))
    return None if found is None or found[1].lower() == "file" else f"{found[1].lower()}://{found[2]}"


def expanded(path: str) -> str:
    """A path of this machine without `file://` and a leading `~`; one in a bucket as it is."""
    if url_of(path) is not None:
        return path
    return os.path.expanduser(re.sub(r"^file:/+", "/", path, flags=re.IGNORECASE))


def only_here(path: str | Path, name: str) -> None:
    """Raises RememError where `path`, the setting `name`, is in a bucket, though it must be on this machine."""
    if url_of(path) is not None:
        raise RememError(f"{name}: expected a path of this machine, found {url_of(path)}: copy it there afterwards")


def local(path: str | Path) -> Path:
    """`path` on this machine; of a file or folder in a bucket the copy, made unless it is there already.

    Raises:
        RememError: nothing is there, it cannot be read, or the package that opens such a bucket is missing.
    """
    url = url_of(path)
    if url is None:
        return Path(expanded(str(path)))
    files, root = _open(url)
    try:
        files.invalidate_cache()
        found = {name: info for name, info in files.find(root, detail=True).items() if not name.endswith("/")}
        if not found:
            raise FileNotFoundError
        versions = {name: [str(info.get(key)) for key in _VERSION] for name, info in found.items()}
        key = hashlib.sha256(json.dumps([url, sorted(versions.items())]).encode()).hexdigest()[:20]
        copy = Path(COPIES).expanduser() / key / Path(root).name
        if not copy.exists():
            _copy(files, root, list(found), copy)
        return copy
    except FileNotFoundError:
        raise RememError(f"{url}: no such file or folder: check the path") from None
    except Exception as error:  # each kind of bucket has errors of its own
        raise _unreadable(url, error) from None


def _open(url: str) -> tuple[Any, str]:
    """The file system of a URL, and its path there."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise RememError(
            f"{url}: the package that opens it is missing: {error}; for gs:// pip install 'remem_jax[gcs]'"
        ) from None
    except ValueError:
        raise RememError(f"{url}: expected a path, or one that begins with file:// or gs://: check it") from None
    except Exception as error:  # no credentials, a bucket's name that cannot be
        raise _unreadable(url, error) from None


def _unreadable(url: str, error: Exception) -> RememError:
    return RememError(f"{url} cannot be read: {type(error).__name__} {' '.join(str(error).split())[:200]}".rstrip())


def _copy(files: Any, root: str, names: list[str], copy: Path) -> None:
    """Files below `root` (or `root` itself, a file) to `copy`, which appears when all are there."""
    copy.parent.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{copy.parent.name}.", dir=copy.parent.parent))
    try:
        for name in names:
            target = part / copy.name / name[len(root) :].lstrip("/") if name != root else part / copy.name
            target.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(name, str(target))
        try:
            part.rename(copy.parent)
        except OSError:  # another process was first
            if not copy.exists():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
