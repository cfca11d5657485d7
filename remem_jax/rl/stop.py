"""SIGTERM and Ctrl-C as a wish to stop that a run grants at its next safe point, all processes at the same one."""

import signal

from jax.experimental import multihost_utils


class Stopped(Exception):
    """Raised at a safe point after a stop was asked for."""


class StopRequest:
    """Listens while it is entered; a second Ctrl-C stops at once.

    Of several processes JAX listens to SIGTERM itself: it tells the others, and all of them of one safe point to come.
    """

    def __init__(self, *, several: bool = False):
        self.asked = False
        self._several, self._checks, self._interrupted = several, 0, False
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGINT,) if self._several else (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _note(self, number: int, _frame) -> None:
        if number == signal.SIGINT:
            if self._interrupted or self.asked:
                raise KeyboardInterrupt
            self._interrupted = True
        if self._several:
            signal.raise_signal(signal.SIGTERM)
        else:
            self.asked = True

    def check(self) -> None:
        """Raises Stopped if a stop was asked for; call it where nothing is half done, all processes equally often."""
        if self._several:
            self._checks += 1
            self.asked = self.asked or multihost_utils.reached_preemption_sync_point(self._checks)
        if self.asked:
            raise Stopped
