"""SIGTERM and Ctrl-C as a wish to stop that a run grants at its next safe point."""

import signal


class Stopped(Exception):
    """Raised at a safe point after a stop was asked for."""


class StopRequest:
    """Listens while it is entered; a second Ctrl-C stops at once."""

    def __init__(self):
        self.asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _note(self, number: int, _frame) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    def check(self) -> None:
        """Raises Stopped if a stop was asked for; call it where nothing is half done."""
        if self.asked:
            raise Stopped
