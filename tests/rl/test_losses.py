"""The objective: hand-computed tokens, exact averages, and gradients that padding cannot poison."""

from math import exp, log

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remem_jax.rl.losses import (
    importance_weights,
    k3,
    logprob_gap,
    policy_loss,
    supervised_loss,
    surrogate,
    token_weights,
)

FEW = settings(max_examples=25, deadline=None)
KINDS = {"state_mean": {}, "token_mean": {}, "constant": {"divisor": 48.0}}
INF, NAN = np.inf, np.nan


def close(found, expected, atol=1e-6):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=atol)


def mean(pair):
    return float(pair[0] / pair[1])


def random_mask(seed, n=3, t1=3, g=2, r=4):
    """Replies are ragged, some turns are empty, some rollouts and questions are dead."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, r + 1, (n, t1, g)) * (draw.random((n, 1, g)) < 0.8)
    return np.arange(r) < lengths[..., None]


@pytest.mark.parametrize(
    ("ratio", "advantage", "value"),
    [(1.5, 1, 1.2), (0.5, -1, -0.8), (0.5, 1, 0.5), (1.5, -1, -1.5), (1.1, 2, 2.2), (9.0, -1, -9.0), (9.0, 0, 0.0)],
)
def test_the_surrogate_takes_the_lower_of_the_plain_and_the_clipped_value(ratio, advantage, value):
    close(surrogate(log(ratio), advantage), value)


def test_the_clip_bounds_are_separate_and_the_dual_clip_bounds_negative_advantages_only():
    close(surrogate(log(1.5), 1.0, eps_low=0.1, eps_high=0.3), 1.3)
    close(surrogate(log(0.5), -1.0, eps_low=0.1, eps_high=0.3), -0.9)
    close(surrogate(log(9.0), -2.0, dual_clip=3.0), -6.0)
    close(surrogate(log(2.0), -2.0, dual_clip=3.0), -4.0)
    close(surrogate(log(9.0), 2.0, dual_clip=3.0), 2.4)
    with pytest.raises(ValueError, match=r"above 1 or none, found 0\.5"):
        surrogate(0.0, 1.0, dual_clip=0.5)


def test_log_ratios_are_clamped_to_20_before_exp():
    close(surrogate(1e4, -1.0), -exp(20), atol=50)
    close(k3(1e4, 0.0), exp(-20) + 19)
    assert np.isfinite(k3(-1e4, 0.0))
    close(importance_weights(0.0, 1e4, 2.0), exp(-20))


def test_k3_has_its_worked_value_and_keeps_its_digits_near_zero():
    close(k3(-1.0, -1.5), 0.1065, atol=5e-5)
    close(k3(-1.0, -0.5), exp(0.5) - 1.5)
    close(k3(-2.0, -2.0), 0.0, atol=0)
    assert float(k3(0.0, 1e-4)) == pytest.approx(0.5e-8, rel=1e-2)


@FEW
@given(st.floats(-30, 0, width=32), st.floats(-30, 0, width=32))
def test_k3_is_not_negative(logp, logp_ref):
    assert k3(logp, logp_ref) >= 0


def test_averages_of_the_worked_example():
    # One rollout, turns of 1 and 3 tokens with losses [4] and [0, 0, 0]; ratio 1 makes the loss minus the advantage.
    mask = np.array([[[[1, 0, 0]], [[1, 1, 1]]]], bool)
    advantages = np.array([[[[-4.0]], [[0.0]]]])
    for kind, expected in [("state_mean", 2.0), ("token_mean", 1.0)]:
        weights, total = token_weights(kind, mask)
        (loss, weight), _ = policy_loss(np.zeros(mask.shape), np.zeros(mask.shape), advantages, weights)
        assert loss / total == expected and weight == total
    weights, total = token_weights("constant", mask, divisor=8.0)
    (loss, weight), _ = policy_loss(np.zeros(mask.shape), np.zeros(mask.shape), advantages, weights)
    assert loss / total == 0.5 and weight == 4


def test_state_mean_gives_turns_rollouts_and_questions_equal_shares():
    mask = np.zeros((3, 3, 2, 2), bool)
    mask[0, 0, 0] = mask[0, 2, 0] = True  # rollout 0: two live turns of 2 tokens, the turn between is masked
    mask[0, 2, 1, 0] = True  # rollout 1: one turn of 1 token
    mask[1, 2, 0] = True  # question 1: one rollout, one turn; question 2 is dead
    weights, total = token_weights("state_mean", mask)
    assert total == 2
    close(weights[0, 0, 0], [1 / 8, 1 / 8])
    close(weights[0, 2], [[1 / 8, 1 / 8], [1 / 2, 0]])
    close(weights[1, 2], [[1 / 2, 1 / 2], [0, 0]])
    assert weights.sum() == 2


def test_unknown_averages_and_a_missing_divisor_are_named():
    with pytest.raises(ValueError, match="found 'mean'"):
        token_weights("mean", np.ones((1, 1, 1, 1), bool))
    with pytest.raises(ValueError, match="loss_divisor"):
        token_weights("constant", np.ones((1, 1, 1, 1), bool))


@FEW
@given(seed=st.integers(0, 10**6))
@pytest.mark.parametrize("kind", list(KINDS))
def test_padding_in_any_axis_changes_no_weight_and_no_total(kind, seed):
    mask = random_mask(seed)
    weights, total = token_weights(kind, mask, **KINDS[kind])
    padded = np.insert(np.pad(mask, ((0, 1), (0, 0), (0, 2), (0, 3))), [2, 2], False, axis=1)
    more, same = token_weights(kind, padded, **KINDS[kind])
    close(np.delete(more, [2, 3], axis=1)[:3, :, :2, :4], weights)
    close(more.sum(), weights.sum(), 1e-5)
    assert same == total and not np.any(np.asarray(more)[~padded])


@FEW
@given(seed=st.integers(0, 10**6))
def test_state_mean_weights_of_each_live_question_sum_to_one_and_its_rollouts_share_alike(seed):
    mask = random_mask(seed)
    weights, total = token_weights("state_mean", mask)
    live = mask.any((1, 3))
    questions = live.any(axis=-1)
    close(weights.sum((1, 2, 3)), questions.astype(float), 1e-5)
    close(weights.sum((1, 3)), live / np.maximum(live.sum(1, keepdims=True), 1), 1e-5)
    assert total == max(int(questions.sum()), 1)


@FEW
@given(seed=st.integers(0, 10**6))
@pytest.mark.parametrize("kind", list(KINDS))
def test_micro_batches_of_any_split_add_up_to_the_whole(kind, seed):
    draw = np.random.default_rng(seed)
    mask = random_mask(seed)
    logp, old, reference = (np.where(mask, draw.normal(-1, 1, mask.shape), NAN) for _ in range(3))
    advantages = draw.normal(size=mask.shape)
    weights, _ = token_weights(kind, mask, **KINDS[kind])

    def loss(part):
        return policy_loss(
            logp[part], old[part], advantages[part], weights[part], beta=0.1, logp_ref=reference[part], dual_clip=3.0
        )

    pieces = [loss(slice(0, 1)), loss(slice(1, 3))]
    jax.tree.map(lambda whole, *parts: close(sum(parts), whole, 1e-4), loss(slice(None)), *pieces)


def test_every_term_of_the_objective_by_hand():
    # Two tokens: ratio 1.5 with A 1 (clipped to 1.2) and ratio 0.5 with A 2; weights 1 and 3.
    (loss, weight), metrics = policy_loss(
        np.array([log(1.5) - 1, log(0.5) - 1]),
        np.array([-1.0, -1.0]),
        np.array([1.0, 2.0]),
        np.array([1.0, 3.0]),
        beta=0.5,
        logp_ref=np.array([log(1.5) - 1.5, log(0.5) - 1]),
        entropy_bonus=0.1,
        entropy=np.array([2.0, 1.0]),
        sampled_logp=np.array([-1 - log(5), -1 + log(2)]),
    )
    # Importance: min(5, 2) = 2 and 0.5. Surrogates 1.2 * 2 and 1.0 * 0.5.
    policy = -2.4 * 1 - 0.5 * 3
    kl = 0.5 * (exp(-0.5) - 0.5) * 1
    entropy = -0.1 * (2 * 1 + 1 * 3)
    close(loss, policy + kl + entropy, 1e-5)
    assert weight == 4
    close(metrics["policy_loss"], (policy, 4), 1e-5)
    close(metrics["kl_loss"], (kl, 4), 1e-5)
    close(metrics["entropy_loss"], (entropy, 4), 1e-5)
    close(metrics["ref_kl"], (exp(-0.5) - 0.5, 2), 1e-5)
    close(metrics["entropy"], (3, 2))
    close(metrics["ratio"], (2, 2))
    close(metrics["importance"], (2.5, 2), 1e-5)
    close(metrics["importance_capped"], (1, 2))
    close(metrics["clip_high"], (1, 2))
    close(metrics["clip_low"], (0, 2))
    close(metrics["old_kl"], (0.5 - log(1.5) - 0.5 - log(0.5), 2), 1e-5)
    assert "clip_dual" not in metrics


def test_an_entropy_without_a_bonus_is_logged_and_changes_no_loss():
    arrays = np.array([-1.0, -2.0]), np.array([-1.5, -2.0]), np.array([1.0, -1.0]), np.array([1.0, 3.0])
    plain, _ = policy_loss(*arrays)
    (loss, weight), metrics = policy_loss(*arrays, entropy=np.array([2.0, 1.0]))
    assert (loss, weight) == plain and "entropy_loss" not in metrics
    close(metrics["entropy"], (3, 2))


def test_supervised_loss_is_the_weighted_negative_log_likelihood():
    logp, weights = jnp.array([-1.0, -2.0, INF]), jnp.array([1.0, 0.5, 0.0])
    (loss, weight), metrics = supervised_loss(logp, weights)
    assert (loss, weight) == (2.0, 1.5) and metrics["nll"] == (2.0, 1.5)
    close(jax.grad(lambda logp: supervised_loss(logp, weights)[0][0])(logp), [-1.0, -0.5, 0.0], 0)


def test_clip_fractions_count_live_tokens_whose_gradient_a_clip_cut_off():
    ratios = np.array([1.5, 1.5, 0.5, 0.5, 9.0, 1.0, 1.5])
    advantages = np.array([1.0, -1, 1, -1, -1, 1, 1])
    weights = np.array([1.0, 1, 1, 1, 1, 1, 0])

    def loss(logp):
        (total, _), metrics = policy_loss(logp, np.zeros(7), advantages, weights, dual_clip=3.0)
        return total, metrics

    gradient, metrics = jax.grad(loss, has_aux=True)(jnp.log(jnp.asarray(ratios, jnp.float32)))
    close(gradient, [0, 1.5, -0.5, 0, 0, -1, 0])
    for name in ("clip_high", "clip_low", "clip_dual"):
        close(metrics[name], (1, 6))


def test_only_the_policy_and_its_entropy_carry_a_gradient():
    arrays = {
        "logp": jnp.array([-1.0, -2.0]),
        "logp_old": jnp.array([-1.1, -2.1]),
        "advantages": jnp.array([1.0, -1.0]),
        "logp_ref": jnp.array([-1.0, -1.5]),
        "entropy": jnp.array([1.0, 1.0]),
        "sampled_logp": jnp.array([-1.1, -2.1]),
    }
    gradients = jax.grad(
        lambda given: policy_loss(weights=jnp.array([1.0, 3.0]), beta=0.5, entropy_bonus=0.1, **given)[0][0]
    )(arrays)
    moved = {name for name, gradient in gradients.items() if np.any(gradient)}
    assert moved == {"logp", "entropy"}
    # d/dlogp: -w * ratio * A + w * beta * (1 - exp(ref - logp)).
    close(gradients["logp"], [-exp(0.1), 3 * exp(0.1) + 3 * 0.5 * (1 - exp(0.5))], 1e-5)
    close(gradients["entropy"], [-0.1, -0.3])


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
def test_inf_and_nan_at_padded_places_reach_neither_loss_nor_gradient(bad):
    live, weights = np.array([-1.0, -2.0]), np.array([1.0, 1.0, 0.0])

    def loss(logp, fill):
        def pad(values):
            return np.append(values, fill)

        return policy_loss(
            logp,
            pad(live - 0.1),
            pad(live + 0.2),
            weights,
            beta=0.1,
            logp_ref=pad(live - 0.3),
            entropy_bonus=0.1,
            entropy=pad(-live),
            sampled_logp=pad(live),
            dual_clip=3.0,
        )

    def value_and_grad(fill):
        logp = jnp.asarray(np.append(live, fill), jnp.float32)
        (_, rest), gradient = jax.value_and_grad(lambda x: (loss(x, fill)[0][0], loss(x, fill)), has_aux=True)(logp)
        return rest, gradient

    (poisoned, gradient), (clean, expected) = value_and_grad(bad), value_and_grad(0.0)
    jax.tree.map(lambda one, other: close(one, other, 0), poisoned, clean)
    close(gradient, expected, 0)
    assert np.all(np.isfinite(gradient)) and gradient[2] == 0


def test_a_bonus_or_a_kl_weight_without_its_array_is_refused_and_zero_needs_none():
    zeros = np.zeros(2)
    with pytest.raises(ValueError, match=r"expected logp_ref with beta 0\.1"):
        policy_loss(zeros, zeros, zeros, zeros, beta=0.1)
    with pytest.raises(ValueError, match=r"expected entropy with entropy_bonus 0\.1"):
        policy_loss(zeros, zeros, zeros, zeros, entropy_bonus=0.1)
    (loss, weight), metrics = policy_loss(zeros, zeros, zeros, zeros)
    assert loss == 0 and weight == 0 and "ref_kl" not in metrics


def test_bfloat16_log_probs_are_computed_in_float32_under_jit():
    logp = jnp.zeros((1, 2, 1, 3), jnp.bfloat16)
    (loss, weight), _ = jax.jit(policy_loss)(logp, logp, -jnp.ones((1, 2, 1, 1)), jnp.ones(logp.shape))
    assert loss == weight == 6 and loss.dtype == jnp.float32


def test_the_gap_between_sampler_and_trainer_is_measured_on_reply_tokens_only():
    gap = logprob_gap(np.array([-1.0, -2.0, NAN]), np.array([-1.5, -2.0, INF]), np.array([True, True, False]))
    assert mean(gap["gap_abs"]) == 0.25
    close(mean(gap["gap_kl"]), (exp(-0.5) - 0.5) / 2)
