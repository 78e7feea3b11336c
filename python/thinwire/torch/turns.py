"""Whose turn it is: after which step of local training which fragment of the parameters is averaged."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Turns:
    """Every fragment has its turn once in ``every`` steps, at even distances; the last one at multiples of ``every``."""

    every: int
    fragments: int

    @property
    def shortest(self) -> int:
        """Steps from one turn to the next, at least."""
        return self.every // self.fragments

    def after(self, step: int) -> int | None:
        """The fragment whose turn it is when ``step`` steps are done."""
        for fragment in range(self.fragments):
            if step % self.every == (fragment + 1) * self.every // self.fragments % self.every:
                return fragment
        return None


def divided(elements: Sequence[int], fragments: int) -> list[range]:
    """Parameters of so many elements, in their order, in runs of about equal sums: at least one in each."""
    runs, begin = [], 0
    for left in range(fragments, 0, -1):
        share = sum(elements[begin:]) / left
        end, taken = begin + 1, elements[begin]
        while end <= len(elements) - left and (left == 1 or taken + elements[end] / 2 <= share):
            taken += elements[end]
            end += 1
        runs.append(range(begin, end))
        begin = end
    return runs
