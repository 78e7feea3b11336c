"""powersgd against an independent implementation in NumPy, in double precision, and against PyTorch's hook."""

import numpy
import pytest
import thinwire
import thinwire.torch
import torch
import torch.distributed as dist
from philox import random_words
from small_models import Given, ddp
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from worker_pool import pool

SHAPES = {"bias": (96,), "convolution": (24, 16, 3, 3), "matrix": (96, 64), "narrow": (3, 700), "other": (96, 64), "scale": ()}
STEPS = 20
ROUNDING = 3e-4  # of the largest entry of a mean: from step to step power iteration multiplies what float32 rounds; a wrong step is off by tenths


def matrix_of(shape, rank):
    """(m, n, r) of what is compressed, else None."""
    if len(shape) < 2:
        return None
    m, n = shape[0], int(numpy.prod(shape[1:]))
    r = min(rank, m, n)
    return (m, n, r) if 2 * r * (m + n) < m * n else None


def orthonormal(a):
    """By QR, with the signs that Gram and Schmidt's way has."""
    q, r = numpy.linalg.qr(a)
    return q * numpy.sign(numpy.diag(r))


def initial_q(n, r):
    words = [random_words(n, (0, k, 0, 0), (0, 0)).astype(numpy.uint32).view(numpy.int32) for k in range(r)]
    return orthonormal(numpy.stack(words, 1) / 2.0**31)


def gradients_of(rank, step):
    """Of slowly changing directions, with noise that is each worker's own."""
    common, own = numpy.random.default_rng(7), numpy.random.default_rng([rank, step])
    gradients = {}
    for name, shape in SHAPES.items():
        elements = int(numpy.prod(shape))
        base, other = common.normal(size=(2, elements))
        gradients[name] = (base * numpy.cos(step / 9) + other * numpy.sin(step / 9) + own.normal(size=elements)).reshape(shape)
        gradients[name] = gradients[name].astype(numpy.float32)
    return gradients


class Reference:
    """Algorithms 1 and 2 of the paper, for all workers at once."""

    def __init__(self, rank, workers, feedback=True):
        self.rank, self.workers, self.feedback = rank, workers, feedback
        self.q, self.residuals = {}, {}

    def step(self, gradients):
        return {name: self.mean(name, numpy.stack([g[name] for g in gradients]).astype(numpy.float64)) for name in SHAPES}

    def mean(self, name, values):
        found = matrix_of(SHAPES[name], self.rank)
        if found is None:
            return values.mean(0)
        m, n, r = found
        matrices = values.reshape(self.workers, m, n) + self.residuals.get(name, 0)
        p = orthonormal(sum(matrix @ orthonormal(self.q.get(name, initial_q(n, r))) for matrix in matrices))
        own_qs = [matrix.T @ p for matrix in matrices]
        self.q[name] = sum(own_qs) / self.workers
        if self.feedback:
            self.residuals[name] = numpy.stack([matrix - p @ own_q.T for matrix, own_q in zip(matrices, own_qs)])
        return (p @ self.q[name].T).reshape(SHAPES[name])


class Bucket:
    """What PyTorch's hook asks a bucket for."""

    def __init__(self, gradients):
        self.tensors = [torch.from_numpy(gradients[name].ravel()) for name in SHAPES if name != "scale"]
        self.flat = torch.cat(self.tensors)

    def buffer(self):
        return self.flat

    def gradients(self):
        shapes = [shape for name, shape in SHAPES.items() if name != "scale"]
        parts = torch.split(self.flat, [int(numpy.prod(shape)) for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes)]

    def index(self):
        return 0

    def is_last(self):
        return True


def pytorch_state(rank):
    """With powersgd's first Qs, in the order in which the hook comes to its matrices: those of one shape together."""
    state = PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    state.iter = 2
    found = [matrix_of(shape, rank) for shape in SHAPES.values()]
    matrices = sorted(filter(None, found), key=found.index)
    state.p_memory_dict[0] = torch.empty(sum(m * r for m, _, r in matrices))
    state.q_memory_dict[0] = torch.from_numpy(numpy.concatenate([initial_q(n, r).ravel() for _, n, r in matrices])).float()
    return state


def check_steps(rank, feedback):
    """Means, compared with the reference's and the hook's; the residuals' sum, with what the means lack of the gradients."""
    workers, own = dist.get_world_size(), dist.get_rank()
    reference, state = Reference(rank, workers, feedback), pytorch_state(rank)
    model = ddp(Given(SHAPES), bucket_cap_mb=0.02)  # several buckets
    with thinwire.torch.attach(model, f"powersgd:rank={rank},feedback={'on' if feedback else 'off'}") as attachment:
        for step in range(STEPS):
            all_gradients = [gradients_of(worker, step) for worker in range(workers)]
            model.zero_grad()
            model(all_gradients[own]).backward()
            expected = reference.step(all_gradients)
            bucket = Bucket(all_gradients[own])
            powerSGD_hook(state, bucket).wait()
            for (name, parameter), theirs in zip([x for x in model.module.named_parameters() if x[0] != "scale"], bucket.gradients()):
                tolerance = ROUNDING * abs(expected[name]).max()
                numpy.testing.assert_allclose(parameter.grad.numpy(), expected[name], rtol=0, atol=tolerance, err_msg=f"{name} in step {step}")
                if feedback:  # which the hook has
                    torch.testing.assert_close(parameter.grad, theirs, rtol=0, atol=tolerance)
        return attachment.stats()["payload_bytes"]


def floats_a_step(rank):
    """P and Q, or values."""
    found = {shape: matrix_of(shape, rank) for shape in SHAPES.values()}
    return sum((m + n) * r for m, n, r in (found[shape] for shape in SHAPES.values() if found[shape])) + sum(
        int(numpy.prod(shape)) for shape in SHAPES.values() if not found[shape])


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_twenty_steps_are_the_papers_and_pytorchs(rank):
    sent = pool(2).run(check_steps, rank, True)
    assert sent[0] == sent[1]
    # Of each message a float says whether it is finite, and one a parameter whether that is used. How many there are, DDP's buckets decide.
    assert 0 < sent[0] / 4 / STEPS - floats_a_step(rank) <= 2 * len(SHAPES)


def test_without_feedback_q_is_remembered_all_the_same():
    pool(3).run(check_steps, 2, False)


def test_a_mean_is_of_rank_r():
    gradients = [gradients_of(worker, 0)["matrix"] for worker in range(3)]
    mean, figures = thinwire.exchange(gradients, "powersgd:rank=3")
    values = numpy.linalg.svd(mean, compute_uv=False)
    assert (values[3:] < 1e-5 * values[0]).all() and values[2] > 0.01 * values[0]
    assert figures["payload_bytes"] == 4 * (3 * (96 + 64) + 2)


def test_what_has_the_rank_is_exact_from_the_second_step_on():
    """And directions that were lost while gradients had a lower rank come back."""
    pool(2).run(check_ranks)


def check_ranks():
    model = ddp(Given(SHAPES))
    random = numpy.random.default_rng(3)
    left, right = random.normal(size=(96, 2)), random.normal(size=(2, 64))
    gradients = gradients_of(0, 0)
    with thinwire.torch.attach(model, "powersgd:rank=2,feedback=off"):
        for count in (2, 2, 1, 1, 0, 2, 2):
            gradients["matrix"] = (left[:, :count] @ right[:count]).astype(numpy.float32)
            model.zero_grad()
            model(gradients).backward()
            got = dict(model.module.named_parameters())["matrix"].grad.numpy()
            numpy.testing.assert_allclose(got, gradients["matrix"], atol=1e-4)
