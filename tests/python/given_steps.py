"""What tests of compressors that remember share: gradients of several parameters, given to DDP step by step."""

import math

import numpy
import thinwire.torch
import torch.distributed as dist
from small_models import Given, ddp

CHUNK = 32768
SHAPES = {"long": (229, 175), "matrix": (96, 64)}


def chunks_of(values):
    return [values[first : first + CHUNK] for first in range(0, len(values), CHUNK)]


def largest_places(values, density):
    """Of equal magnitudes the first ones."""
    return numpy.sort(numpy.argsort(-abs(values), kind="stable")[: math.ceil(density * len(values))])


def gradients_of(rank, step):
    """Noise around something that all workers have in common; in some steps a worker has no gradient of the matrix."""
    common, own = numpy.random.default_rng(7), numpy.random.default_rng([rank, step])
    gradients = {}
    for name, shape in SHAPES.items():
        values = common.normal(size=shape) + own.laplace(size=shape)
        gradients[name] = (values * (name != "matrix" or (step + rank) % 3 != 0)).astype(numpy.float32)
    return gradients


def check_steps(spec, steps, reference, tolerance=0.0, resumed_every=None, gradients=gradients_of):
    """reference(name, values, step): the mean of a flat parameter, of the values of all workers (workers, elements); NaN where it may be
    anything. resumed_every: after so many steps the state is saved, and loaded into a new attachment of a new model. gradients(rank, step):
    what a worker has, by name."""
    workers, own = dist.get_world_size(), dist.get_rank()
    state = None
    for first in range(0, steps, resumed_every or steps):
        model = ddp(Given(SHAPES), bucket_cap_mb=0.02)  # several buckets
        with thinwire.torch.attach(model, spec) as attachment:
            if state:
                attachment.load_state_dict(state)
            for step in range(first, min(steps, first + (resumed_every or steps))):
                all_gradients = [gradients(worker, step) for worker in range(workers)]
                model.zero_grad()
                model(all_gradients[own]).backward()
                for name, parameter in model.module.named_parameters():
                    values = numpy.stack([of_worker[name].ravel() for of_worker in all_gradients]).astype(numpy.float64)
                    expected = reference(name, values, step)
                    found = parameter.grad.numpy().ravel()
                    known = ~numpy.isnan(expected)
                    assert known.any()
                    numpy.testing.assert_allclose(found[known], expected[known], rtol=1e-5, atol=tolerance, err_msg=f"{name}, step {step}")
            state = attachment.state_dict(all_ranks=False)
            sent = attachment.stats()["payload_bytes"]
    return sent
