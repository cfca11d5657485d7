"""Sizes that programs are compiled for: a short ladder, so that lengths of one class share one compilation."""

import threading

import jax


def bucket(n: int, smallest: int = 32) -> int:
    """The smallest size of the ladder that is at least `n`: powers of two to 512, then four steps an octave to 4,096,
    then steps of 512 until they are 1/16.

    bucket(33) = 64, bucket(300) = 512, bucket(600) = 640, bucket(5200) = 5632, bucket(20000) = 20480.
    """
    if n <= 512:
        return max(smallest, power_of_two(n))
    octave = power_of_two(n)
    step = max(min(512, octave // 8), octave // 32)
    return -(-n // step) * step


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n` (1 for 0)."""
    return 1 << max(n - 1, 0).bit_length()


_compilations = 0
_lock = threading.Lock()


def _count(event: str, duration_secs: float, **kwargs: str | int) -> None:
    global _compilations
    if event == "/jax/core/compile/backend_compile_duration":
        with _lock:
            _compilations += 1


jax.monitoring.register_event_duration_secs_listener(_count)


def compilations() -> int:
    """How many programs this process has compiled since this module was imported."""
    return _compilations
