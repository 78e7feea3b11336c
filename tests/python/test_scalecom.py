"""scalecom against an independent implementation of the paper's algorithm 1 in NumPy, over many steps."""

import math

import numpy
import pytest
import thinwire
from given_steps import check_steps, chunks_of, gradients_of, largest_places
from worker_pool import pool


class Reference:
    """For all workers at once, in double precision. Chunks of all parameters are numbered one after another, and their owners follow."""

    FIRST_CHUNK = {"long": 0, "matrix": 2}

    def __init__(self, density, beta=1.0):
        self.density, self.beta = density, beta
        self.memories = {}

    def __call__(self, name, values, step):
        workers = len(values)
        means = []
        for number, chunk in enumerate(zip(*(chunks_of(of_worker) for of_worker in values), strict=True)):
            gradients = numpy.stack(chunk)
            memory = self.memories.get((name, number), numpy.zeros_like(gradients))
            full = gradients + memory
            leader = (step + self.FIRST_CHUNK[name] + number) % workers
            sent = numpy.zeros_like(full)
            places = largest_places(full[leader], self.density)
            sent[:, places] = full[:, places]
            self.memories[name, number] = (1 - self.beta) * memory + self.beta * (full - sent)
            if not gradients.any():  # a chunk that nobody uses waits
                self.memories[name, number], sent = memory, 0 * sent
            means.append(sent.mean(0))
        return numpy.concatenate(means)


def place_bytes(count, elements):
    lower = int(math.log2(elements // count))
    return -(-count * lower // 8) + -(-(count + ((elements - 1) >> lower)) // 8)


def check(steps, settings):
    spec = "scalecom:" + ",".join(f"{name}={value}" for name, value in settings.items())
    return check_steps(spec, steps, Reference(**settings), tolerance=1e-5)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("beta", [1.0, 0.1])
def test_every_step_is_what_the_paper_says(workers, beta):
    pool(workers).run(check, 9, {"density": 0.02, "beta": beta})


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("density", [0.001, 0.01, 0.3, 1])
def test_all_send_what_a_leader_says(workers, density):
    gradients = [(numpy.random.default_rng(rank).laplace(size=70_003) * 64).round().astype(numpy.float32) / 64 for rank in range(workers)]
    mean, figures = thinwire.exchange(gradients, f"scalecom:density={density}")
    expected, sent, words = [], 0, 0
    for number, chunk in enumerate(zip(*(chunks_of(gradient) for gradient in gradients), strict=True)):
        places = largest_places(chunk[number % workers], density)
        total = numpy.zeros_like(chunk[0])
        total[places] = sum(of_worker[places] for of_worker in chunk)  # of 64ths: exact in any order
        divisor = 2 ** math.ceil(math.log2(workers))
        expected.append(total / numpy.float32(divisor) * numpy.float32(divisor / workers))
        sent += len(places)
        words += -(-place_bytes(len(places), len(total)) // 4)
    numpy.testing.assert_array_equal(mean, numpy.concatenate(expected))
    assert figures["payload_bytes"] == 4 * (sent + 1 + 3 + words)
    assert figures["rounds"] == 2


def test_of_equal_workers_it_is_topk():
    gradient = gradients_of(0, 1)["long"]
    led, _ = thinwire.exchange([gradient] * 4, "scalecom:density=0.01")
    alone, _ = thinwire.exchange([gradient], "topk:density=0.01")
    numpy.testing.assert_array_equal(led, alone)
