"""Paths in a bucket beside those of this machine: `gs://bucket/file`, all else that fsspec opens, and `file://`.

What is read there is copied whole to this machine first, so that everything else meets ordinary files. A copy is named
by what the bucket says of its files, so none is ever out of date, and appears whole or not at all. A run in a bucket
has its checkpoints there (`stored.absolute`); its other files are written here and sent there at every checkpoint.
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

COPIES, RUNS = "~/.cache/remem_jax/copies", "~/.cache/remem_jax/runs"
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
    files, root = open_url(url)
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
        raise _failed(url, "read", error) from None


def run_folder(run_dir: str | Path) -> Path:
    """Where the files of a run are written, checkpoints apart: `run_dir`, or a folder here for one in a bucket."""
    url = url_of(run_dir)
    if url is None:
        return Path(run_dir)
    return Path(RUNS).expanduser() / hashlib.sha256(url.encode()).hexdigest()[:20] / Path(url).name


def fetch_run(run_dir: str | Path, *leave: str) -> None:
    """Makes the folder of a run in a bucket anew, of what the bucket holds; a run on this machine is left alone.

    Of several processes the first does it, as it alone writes these files.

    Args:
        leave: folders at the top that stay in the bucket alone.

    Raises:
        RememError: the bucket cannot be read.
    """
    url, folder = url_of(run_dir), run_folder(run_dir)
    if url is None or not _is_first():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files, root = open_url(url)
    try:
        for name in files.find(root):
            inner = name[len(root) :].strip("/")
            if inner.split("/")[0] not in leave:
                (folder / inner).parent.mkdir(parents=True, exist_ok=True)
                files.get_file(name, str(folder / inner))
    except Exception as error:
        raise _failed(url, "read", error) from None
    _sent_file(folder).write_text(json.dumps(_stamps(folder)), encoding="utf-8")


def send_run(run_dir: str | Path) -> None:
    """Copies to the bucket what was written in the folder of a run since the last time, and removes what is gone.

    Raises:
        RememError: the bucket cannot be written.
    """
    url, folder = url_of(run_dir), run_folder(run_dir)
    if url is None or not _is_first():
        return
    files, root = open_url(url)
    before, now = json.loads(_sent_file(folder).read_text(encoding="utf-8")), _stamps(folder)
    try:
        for name in sorted(now):
            if now[name] != before.get(name):
                files.put_file(str(folder / name), f"{root}/{name}")
        for name in before.keys() - now.keys():
            files.rm_file(f"{root}/{name}")
    except Exception as error:
        raise _failed(url, "written", error) from None
    _sent_file(folder).write_text(json.dumps(now), encoding="utf-8")


def _is_first() -> bool:
    import jax

    return jax.process_index() == 0


def _sent_file(folder: Path) -> Path:
    return folder.with_name("sent.json")


def _stamps(folder: Path) -> dict[str, list[int]]:
    """Name -> size and time of writing, of every file that is not still being written."""
    files = {str(file.relative_to(folder)): file.stat() for file in folder.rglob("*") if file.is_file()}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in files.items() if not name.endswith(".part")}


def open_url(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path there.

    Raises:
        RememError: an unknown kind of bucket, or one whose package is missing.
    """
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
        raise _failed(url, "read", error) from None


def _failed(url: str, what: str, error: Exception) -> RememError:
    return RememError(f"{url} cannot be {what}: {type(error).__name__} {' '.join(str(error).split())[:200]}".rstrip())


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
