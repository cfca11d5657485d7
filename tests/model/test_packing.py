"""Packed rows against rows written out by hand, and read back from random ones."""

# pyright: reportArgumentType=false, reportCallIssue=false
# NumPy arrays are handed to functions of jax arrays throughout: making them costs no compilation.

import jax
import jax.numpy as jnp
import numpy as np

from remem_jax.model.packing import Ragged, pack_groups, plain_rows, ragged, suffix_starts


def test_lists_are_padded_on_the_right_at_one_and_two_levels():
    flat = ragged([[1, 2], [], [3]])
    assert flat.ids.tolist() == [[1, 2], [0, 0], [3, 0]]
    assert flat.lengths.tolist() == [2, 0, 1]
    nested = ragged([[[], [1, 2]], [[3], [4]]], size=3)
    assert nested.ids.tolist() == [[[0, 0, 0], [1, 2, 0]], [[3, 0, 0], [4, 0, 0]]]
    assert nested.lengths.tolist() == [[0, 2], [1, 1]]
    assert ragged([[], []]).ids.shape == (2, 1)


def test_suffixes_start_one_after_the_other_behind_the_prefix_slot():
    assert suffix_starts(jnp.array([[2, 0, 3], [0, 4, 1]]), 5).tolist() == [[5, 7, 7], [5, 5, 9]]


def test_a_row_is_prefix_then_suffixes_then_padding_as_written_by_hand():
    prefixes = ragged([[11, 12, 13], [21]])
    suffixes = ragged([[[1, 2], [], [3, 4, 5]], [[], [6], []]])
    rows = pack_groups(prefixes, suffixes, row_tokens=10)
    assert rows.tokens.tolist() == [[11, 12, 13, 1, 2, 3, 4, 5, 0, 0], [21, 0, 0, 6, 0, 0, 0, 0, 0, 0]]
    assert rows.start.tolist() == [[0, 0, 0, 3, 3, 5, 5, 5, 8, 9], [0, 0, 0, 3, 4, 5, 6, 7, 8, 9]]
    positions = np.where(rows.valid, rows.positions, -1)
    assert positions.tolist() == [[0, 1, 2, 3, 4, 3, 4, 5, -1, -1], [0, -1, -1, 1, -1, -1, -1, -1, -1, -1]]
    assert (rows.prefix_slot, rows.band) == (3, 3)


def test_without_a_prefix_slot_a_row_is_ordinary_packing():
    none = Ragged(jnp.zeros((1, 0), jnp.int32), jnp.zeros(1, jnp.int32))
    rows = pack_groups(none, ragged([[[1, 2], [3]]]), row_tokens=3)
    assert rows.tokens.tolist() == [[1, 2, 3]]
    assert rows.positions.tolist() == [[0, 1, 0]]
    assert rows.start.tolist() == [[0, 0, 2]]
    assert rows.valid.all()
    assert rows.prefix_slot == 0


def test_the_band_is_never_wider_than_what_is_left_of_the_row():
    assert pack_groups(ragged([[1]]), ragged([[[2]]], size=64), row_tokens=9).band == 8


def test_plain_rows_are_rows_of_one_suffix():
    tokens, lengths = jnp.array([[1, 2, 3], [4, 0, 0]]), jnp.array([3, 1])
    rows = plain_rows(tokens, lengths)
    assert rows.positions.tolist() == [[0, 1, 2]] * 2
    assert rows.start.tolist() == [[0, 0, 0]] * 2
    assert rows.valid.tolist() == [[True] * 3, [True, False, False]]
    assert (rows.prefix_slot, rows.band) == (0, 3)


def test_every_suffix_is_read_back_from_its_place_with_the_positions_after_its_prefix():
    numbers = np.random.default_rng(0)
    pack = jax.jit(pack_groups, static_argnames="row_tokens")
    n, g, slot, longest, tokens = 4, 5, 6, 7, 43
    for _ in range(20):
        prefix_lengths, lengths = numbers.integers(0, slot + 1, n), numbers.integers(0, longest + 1, (n, g))
        prefixes = [numbers.integers(1, 100, k).tolist() for k in prefix_lengths]
        suffixes = [[numbers.integers(1, 100, k).tolist() for k in group] for group in lengths]
        rows = pack(ragged(prefixes, size=slot), ragged(suffixes, size=longest), row_tokens=tokens)
        rows = jax.tree.map(np.asarray, rows)
        starts = slot + np.cumsum(lengths, axis=1) - lengths
        assert rows.valid.sum() == prefix_lengths.sum() + lengths.sum()
        for i in range(n):
            assert rows.tokens[i, : prefix_lengths[i]].tolist() == prefixes[i]
            for j in range(g):
                places = slice(starts[i, j], starts[i, j] + lengths[i, j])
                assert rows.tokens[i, places].tolist() == suffixes[i][j]
                assert (rows.start[i, places] == starts[i, j]).all()
                expected = np.arange(lengths[i, j]) + prefix_lengths[i]
                assert rows.positions[i, places].tolist() == expected.tolist()
