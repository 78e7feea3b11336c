"""Ctrl-C and SIGTERM: they end a job in an orderly way, and never in the middle of cleaning up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; handled like Ctrl-C."""


def terminate_as_interrupt() -> None:
    """From now on SIGTERM raises `Terminated` in the main thread, so that `with` blocks end.

    Ctrl-C raises KeyboardInterrupt even if the job was started in the background by a shell, from which it inherits
    that SIGINT is ignored.
    """
    def raise_terminated(*_: object) -> None:
        raise Terminated()
    signal.signal(signal.SIGTERM, raise_terminated)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def held() -> Iterator[None]:
    """Signals that arrive within the block take effect at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread alone
        return
    arrived: list[int] = []
    before = {each: signal.signal(each, lambda number, _: arrived.append(number))
              for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if arrived:
            signal.raise_signal(arrived[0])
