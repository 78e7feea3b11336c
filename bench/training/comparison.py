"""Numbers from measurements: smoothed losses, time to the same loss, paired intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SMOOTHING_STEPS = 25
_COMPARABLE_LOSS = 1.25  # times plain's final loss; what ends higher has not learned the same

# 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom.
_STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
_NORMAL = 1.959964


def student_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t, to about three decimals."""
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z = _NORMAL  # Cornish-Fisher expansion
    return (z + (z**3 + z) / (4 * degrees)
            + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
            + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3))


@dataclass(frozen=True)
class Interval:
    """A mean and the half width of its 95 % interval (None for fewer than two values)."""

    mean: float
    half_width: float | None


def paired_interval(values: Sequence[float], references: Sequence[float]) -> Interval:
    """Of value minus reference, pair by pair."""
    differences = [value - reference for value, reference in zip(values, references, strict=True)]
    mean = statistics.fmean(differences)
    count = len(differences)
    if count < 2:
        return Interval(mean, None)
    error = statistics.stdev(differences) / math.sqrt(count)
    return Interval(mean, student_quantile(count - 1) * error)


def smoothed(losses: Sequence[float], window: int = SMOOTHING_STEPS) -> list[float]:
    """The mean of the last `window` losses (of all so far at the start), step by step."""
    result, total = [], 0.0
    for step, loss in enumerate(losses):
        total += loss
        if step >= window:
            total -= losses[step - window]
        result.append(total / min(step + 1, window))
    return result


def cumulated(values: Sequence[float]) -> list[float]:
    result, total = [], 0.0
    for value in values:
        total += value
        result.append(total)
    return result


def common_loss(final_losses: Sequence[float], reference: float) -> float:
    """The loss that all comparable configurations reached: the worst of their final losses.

    One whose final loss is above 1.25 times the `reference` (plain's), or not finite, is left out:
    it would set a level that says nothing about the others.
    """
    comparable = [loss for loss in final_losses
                  if math.isfinite(loss) and loss <= _COMPARABLE_LOSS * reference]
    return max(comparable, default=reference)


def seconds_to_loss(losses: Sequence[float], step_seconds: Sequence[float],
                    level: float) -> float | None:
    """Training seconds until the smoothed loss is at `level` or below; None if it never is.

    The first window is left out: its mean is of too few steps.
    """
    elapsed = cumulated(step_seconds)
    first = min(SMOOTHING_STEPS, len(losses)) - 1
    for step, loss in enumerate(smoothed(losses)):
        if step >= first and loss <= level:
            return elapsed[step]
    return None
