"""The ladder of sizes, and the count of compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remem_jax.rollout.buckets import bucket, compilations, power_of_two


def test_sizes_are_those_of_the_ladder():
    sizes = {
        1: 32,
        32: 32,
        33: 64,
        300: 512,
        513: 640,
        1025: 1280,
        3000: 3072,
        5200: 5632,
        16384: 16384,
        16385: 17408,
        20000: 20480,
    }
    assert {n: bucket(n) for n in sizes} == sizes
    assert bucket(3, smallest=4) == 4


def test_powers_of_two():
    assert [power_of_two(n) for n in (0, 1, 2, 3, 4, 5, 1000)] == [1, 1, 2, 4, 4, 8, 1024]


@given(st.integers(1, 200_000))
def test_a_size_holds_its_number_is_on_the_ladder_itself_and_wastes_little_when_large(n):
    size = bucket(n)
    assert n <= size == bucket(size)
    assert bucket(n + 1) >= size
    assert n <= 512 or size - n <= n / 4


def test_a_new_program_is_counted_once_and_a_known_one_not_at_all():
    run = jax.jit(lambda x: jnp.sin(x) * 3)
    small, large = np.ones(3, np.float32), np.ones(4, np.float32)
    before = compilations()
    run(small)
    assert compilations() == before + 1
    run(small)
    assert compilations() == before + 1
    run(large)
    assert compilations() == before + 2
