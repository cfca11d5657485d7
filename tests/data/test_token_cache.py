"""Ids of long texts in files: the tokenizer's own, read back once they are there, kept apart by tokenizer and text."""

import numpy as np
import pytest

from remem_jax.data.token_cache import SHORT, TokenCache
from remem_jax.errors import RememError
from remem_jax.testing import DummyTokenizer

TEXT = "Ann Lee wrote it. " * (SHORT // 18 + 1)


class Counting(DummyTokenizer):
    """Counts what it encodes."""

    def __init__(self, fingerprint: str = "a"):
        self.fingerprint, self.encoded = fingerprint, 0

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        self.encoded += 1
        return super().encode(text, special=special)


def test_a_long_text_is_tokenised_once_and_read_after(tmp_path):
    cache, tokenizer = TokenCache(tmp_path / "new" / "folder"), Counting()
    first, second = cache.encode(tokenizer, TEXT), cache.encode(tokenizer, TEXT)
    assert tokenizer.encoded == 1
    assert first.tolist() == second.tolist() == DummyTokenizer().encode(TEXT)
    assert first.dtype == second.dtype == np.uint16  # 262 ids fit
    assert len(list(tmp_path.rglob("*.npy"))) == 1 and not list(tmp_path.rglob("*.part"))


def test_another_text_and_another_tokenizer_have_files_of_their_own(tmp_path):
    cache = TokenCache(tmp_path)
    for tokenizer in (Counting("a"), Counting("b")):
        for text in (TEXT, TEXT + "!"):
            assert cache.encode(tokenizer, text).tolist() == DummyTokenizer().encode(text)
        assert tokenizer.encoded == 2


def test_a_short_text_leaves_no_file(tmp_path):
    tokenizer = Counting()
    assert TokenCache(tmp_path).encode(tokenizer, "Ann").tolist() == [65, 110, 110]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left", [b"", b"\x93NUMPY", None])
def test_a_damaged_file_is_written_anew(tmp_path, left):
    cache, tokenizer = TokenCache(tmp_path), Counting()
    cache.encode(tokenizer, TEXT)
    (file,) = tmp_path.rglob("*.npy")
    file.write_bytes(file.read_bytes()[:-100] if left is None else left)
    assert cache.encode(tokenizer, TEXT).tolist() == DummyTokenizer().encode(TEXT)
    assert tokenizer.encoded == 2
    assert np.load(file).tolist() == DummyTokenizer().encode(TEXT)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    cache = TokenCache(tmp_path / "file")
    (tmp_path / "file").write_text("")
    with pytest.raises(RememError, match=r"^cache: .*file cannot be written \(Not a directory\): name another"):
        cache.encode(Counting(), TEXT)


def test_a_file_in_the_folders_place_is_told_before_any_text_comes(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RememError, match=r"^cache: expected a folder, found the file .*file: name another"):
        TokenCache(tmp_path / "file")
