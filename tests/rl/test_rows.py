"""Training rows written out by hand, against `pack_groups` on random groups, and cut into micro-batches.

Axes: `N` rows, `T` tokens of a row, `M` reply tokens of a row.
"""

import jax
import numpy as np

from remem_jax.model.packing import pack_groups, ragged
from remem_jax.rl.rows import Group, Reply, micro_batches, pack_rows, row_size, split_group


def given(suffix, ids, **changes) -> Reply:
    """A reply that was not sampled: ids and weights 1."""
    return Reply(np.array(suffix), np.array(ids), np.ones(len(ids), np.float32), **changes)


def random_group(numbers, prefix: int, sizes) -> Group:
    def reply(suffix: int, length: int) -> Reply:
        floats = numbers.normal(size=(4, length)).astype(np.float32)
        ids = numbers.integers(1, 256, suffix), numbers.integers(1, 256, length)
        return Reply(*ids, floats[0], float(numbers.normal()), floats[1], floats[2], floats[3])

    return Group(numbers.integers(1, 256, prefix), tuple(reply(*size) for size in sizes))


def test_a_row_of_two_replies_as_written_by_hand():
    group = Group(np.array([11, 12]), (given([1], [2, 3], advantage=0.5), given([4, 5], [6], advantage=-1.0)))
    rows = pack_rows([group])
    assert rows.rows.tokens.shape == (1, 64) and rows.rows.prefix_slot == 32 and rows.rows.band == 32
    assert rows.rows.tokens[0, :3].tolist() == [11, 12, 0]
    assert rows.rows.tokens[0, 32:39].tolist() == [1, 2, 3, 4, 5, 6, 0]
    assert rows.rows.positions[0, 32:38].tolist() == [2, 3, 4, 2, 3, 4]
    assert rows.rows.start[0, 32:40].tolist() == [32, 32, 32, 35, 35, 35, 38, 39]
    assert np.flatnonzero(rows.rows.valid[0]).tolist() == [0, 1, *range(32, 38)]
    # A token is predicted one place before it: 2 and 3 at 32 and 33, 6 at 36.
    assert rows.index[0, :4].tolist() == [32, 33, 36, 0]
    assert rows.targets[0, :4].tolist() == [2, 3, 6, 0]
    assert rows.advantages[0, :4].tolist() == [0.5, 0.5, -1.0, 0.0]
    assert rows.weights[0, :4].tolist() == [1, 1, 1, 0]
    assert not rows.logp_old.any() and rows.sampled_logp is None and rows.logp_ref is None


def test_rows_are_laid_out_as_pack_groups_lays_them_out():
    numbers = np.random.default_rng(0)
    groups = [
        random_group(numbers, 40, [(5, 7), (1, 1), (20, 3), (9, 12)]),
        random_group(numbers, 0, [(30, 5), (2, 9)]),
        random_group(numbers, 13, [(6, 4)] * 3),
    ]
    found = pack_rows(groups).rows
    prefixes = ragged([*(g.prefix_ids.tolist() for g in groups), []], found.prefix_slot)
    sequences = [[[*r.suffix_ids.tolist(), *r.reply_ids.tolist()] for r in g.replies] for g in groups]
    suffixes = ragged([*(of_group + [[]] * (4 - len(of_group)) for of_group in sequences), [[]] * 4], 64)
    wanted = jax.jit(pack_groups, static_argnames="row_tokens")(prefixes, suffixes, row_tokens=found.tokens.shape[1])
    assert (found.prefix_slot, found.band) == (wanted.prefix_slot, wanted.band) == (64, 64)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_values_of_every_reply_token_stand_in_order_at_the_places_that_predict_them():
    numbers = np.random.default_rng(1)
    groups = [random_group(numbers, 9, [(3, 4), (1, 6)]), random_group(numbers, 0, [(2, 5)] * 5)]
    rows = pack_rows(groups)
    for row, group in enumerate(groups):
        count = sum(len(reply.reply_ids) for reply in group.replies)
        for name in ("weights", "logp_old", "sampled_logp", "logp_ref"):
            wanted = np.concatenate([getattr(reply, name) for reply in group.replies])
            np.testing.assert_array_equal(getattr(rows, name)[row, :count], wanted)
            assert not getattr(rows, name)[row, count:].any()
        np.testing.assert_array_equal(rows.targets[row, :count], rows.rows.tokens[row, rows.index[row, :count] + 1])
        np.testing.assert_array_equal(
            rows.targets[row, :count], np.concatenate([reply.reply_ids for reply in group.replies])
        )


def test_slot_and_suffixes_round_up_together_or_apart_whichever_is_shorter():
    assert row_size(10, 224) == (32, 256)  # apart: 32 + 256 = 288, in blocks of 128 that is 384
    assert row_size(200, 30) == (256, 384)  # together: 286 becomes 512; apart 256 + 32
    assert row_size(0, 30) == (0, 32)
    assert row_size(640, 16 * 192) == (640, 3712)


def test_a_token_budget_makes_micro_batches_of_like_rows_and_keeps_every_reply():
    numbers = np.random.default_rng(2)
    groups = [random_group(numbers, p, [(4, 4)] * 4) for p in (10, 200, 12, 220, 11, 9)]
    lists = micro_batches(groups, token_budget=300)
    assert sorted(len(g.prefix_ids) for batch in lists for g in batch) == [9, 10, 11, 12, 200, 220]
    assert [len(batch) for batch in lists] == [4, 1, 1]


def test_long_groups_are_cut_into_rows_of_row_tokens_that_repeat_the_prefix():
    numbers = np.random.default_rng(3)
    groups = [random_group(numbers, 10, [(20, 11)] * 16) for _ in range(3)]
    pieces = split_group(groups[0], 256)
    assert [len(piece.replies) for piece in pieces] == [7, 7, 2]  # 32 slots and 7 * 31 = 217 are 249 of 256
    assert all(piece.prefix_ids is groups[0].prefix_ids for piece in pieces)
    assert [reply for piece in pieces for reply in piece.replies] == list(groups[0].replies)
    lists = micro_batches(groups, token_budget=2048, row_tokens=256)
    assert max(pack_rows(batch).rows.tokens.shape[1] for batch in lists) == 256
    replies = [id(reply) for batch in lists for group in batch for reply in group.replies]
    assert sorted(replies) == sorted(id(reply) for group in groups for reply in group.replies)
    whole = micro_batches(groups, token_budget=2048)
    assert [len(group.replies) for batch in whole for group in batch] == [16, 16, 16]


def test_a_reply_longer_than_a_row_has_a_row_of_its_own():
    numbers = np.random.default_rng(4)
    group = random_group(numbers, 10, [(20, 11), (200, 40), (20, 11)])
    assert [len(piece.replies) for piece in split_group(group, 128)] == [1, 1, 1]


def test_no_list_is_padded_by_more_than_a_third():
    numbers = np.random.default_rng(5)
    groups = [random_group(numbers, 0, [(4, 4)]) for _ in range(80)]
    for count, wanted in [(80, [64, 16]), (5, [4, 1]), (6, [6]), (3, [3]), (37, [32, 4, 1])]:
        assert [len(batch) for batch in micro_batches(groups[:count], token_budget=10**6)] == wanted
