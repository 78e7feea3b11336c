"""sparseloco's feedback, which may forget, against NumPy, over many steps."""

import numpy
import pytest
import thinwire
from given_steps import check_steps, chunks_of
from test_sparsifiers import runs_of, sparseloco_run
from worker_pool import pool


class Reference:
    """For all workers at once, in single precision, as runs that are sent depend on the last bits."""

    def __init__(self, decay):
        self.decay = numpy.float32(decay)
        self.residuals = {}

    def __call__(self, name, values, step):
        means = []
        for number, chunk in enumerate(zip(*(chunks_of(of_worker.astype(numpy.float32)) for of_worker in values), strict=True)):
            gradients = numpy.stack(chunk)
            residuals = self.residuals.get((name, number), numpy.zeros_like(gradients))
            full = gradients + self.decay * residuals
            sent = numpy.stack([numpy.concatenate([sparseloco_run(own[run]) for run in runs_of(len(own))]) for own in full])
            if gradients.any():  # a chunk that nobody uses waits
                self.residuals[name, number] = full - sent
            else:
                sent = 0 * sent
            means.append(sent.mean(0))
        return numpy.concatenate(means)


def check(steps, decay):
    check_steps(f"sparseloco:decay={decay}", steps, Reference(decay), tolerance=1e-5)


@pytest.mark.parametrize("decay", [1, 0.95, 0])
def test_every_step_is_what_the_paper_says(decay):
    pool(2).run(check, 8, decay)


def test_a_residual_of_another_compressor_does_not_decay():
    with pytest.raises(thinwire.ArgumentError, match="residuals are those of what comes before it, and do not decay"):
        thinwire.canonical_spec("s2:mode=exact/sparseloco:decay=0.5")
    assert thinwire.canonical_spec("s2:mode=exact/sparseloco").startswith("s2:")
