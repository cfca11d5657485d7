"""Token ids of long texts, kept in files: an epoch after the first reads ids and tokenises nothing.

A file is named by what the ids depend on, the tokenizer and the text, so no file is ever out of date. It appears whole
or not at all, and any number of threads and processes may share a folder.
"""

import hashlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from remem_jax.errors import RememError
from remem_jax.tokenizer import Tokenizer

SHORT = 32_768  # characters; a shorter text is tokenised sooner than its file is found


@dataclass(frozen=True)
class TokenCache:
    """A folder of token ids, made when first needed."""

    folder: Path

    def __post_init__(self):
        if self.folder.exists() and not self.folder.is_dir():
            raise RememError(f"cache: expected a folder, found the file {self.folder}: name another")

    def encode(self, tokenizer: Tokenizer, text: str) -> np.ndarray:
        """Ids `[tokens]` of `text` as `tokenizer.encode` gives them, int32 or uint16; read from disk where they are.

        A damaged file is written anew.

        Raises:
            RememError: the folder cannot be written.
        """
        if len(text) < SHORT:
            return np.asarray(tokenizer.encode(text), np.int32)
        name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40] + ".npy"
        path = self.folder / tokenizer.fingerprint[:16] / name
        try:
            return np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError):
            ids = np.asarray(tokenizer.encode(text), np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32)
        part = path.with_name(f"{name}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with part.open("wb") as file:
                    np.save(file, ids)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise RememError(
                f"cache: {self.folder} cannot be written ({error.strerror}): name another folder, or none"
            ) from None
        return ids
