"""Random projections as a DDP hook: what gradiveq and PowerSGD, whose directions are found, are compared to."""

from __future__ import annotations

import torch
import torch.distributed as dist

_SMALLEST = 4096  # elements; as gradiveq's default


class RandomProjection:
    """Every step projects filters on d = K/ratio random orthonormal directions, the same on every worker.

    What they do not hold stays in each worker's residual. Coefficients of all workers add up; parameters of one dimension and
    small ones travel as they are.
    """

    def __init__(self, group: dist.ProcessGroup | None, ratio: float, seed: int) -> None:
        self.sent_elements = 0  # by this worker, over all steps
        self._group = group
        self._ratio = ratio
        self._seed = seed
        self._steps: dict[int, int] = {}  # of each bucket
        self._residuals: dict[int, torch.Tensor] = {}  # by id of the parameter

    def directions(self, entries: int, bucket: int, index: int) -> torch.Tensor:
        """(entries, d), orthonormal; of this step, of the bucket's parameter `index`."""
        generator = torch.Generator().manual_seed(hash((self._seed, self._steps[bucket], bucket, index)) & 0x7FFFFFFF)
        dims = max(round(entries / self._ratio), 1)
        return torch.linalg.qr(torch.randn(entries, dims, generator=generator))[0]

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The mean of the bucket's gradients."""
        number = bucket.index()
        self._steps[number] = self._steps.get(number, -1) + 1
        payload, bases = [], []
        for index, (parameter, gradient) in enumerate(zip(bucket.parameters(), bucket.gradients())):
            if gradient.dim() < 2 or gradient.numel() < _SMALLEST:
                bases.append(None)
                payload.append(gradient.flatten())
                continue
            matrix = gradient.flatten(1)
            if id(parameter) in self._residuals:
                matrix = matrix + self._residuals[id(parameter)]
            basis = self.directions(matrix.shape[1], number, index)
            coefficients = matrix @ basis
            self._residuals[id(parameter)] = matrix - coefficients @ basis.T
            bases.append(basis)
            payload.append(coefficients.flatten())
        flat = torch.cat(payload)
        self.sent_elements += flat.numel()
        workers = dist.get_world_size(self._group)

        def decode(summed: torch.futures.Future) -> torch.Tensor:
            means = (summed.value()[0] / workers).split([part.numel() for part in payload])
            for gradient, basis, mean in zip(bucket.gradients(), bases, means):
                decoded = mean if basis is None else mean.view(gradient.shape[0], -1) @ basis.T
                gradient.copy_(decoded.view_as(gradient))
            return bucket.buffer()

        return dist.all_reduce(flat, group=self._group, async_op=True).get_future().then(decode)


def hook(state, bucket):  # bare, since DDP reads annotations and takes no strings
    """DDP's form of RandomProjection.reduce()."""
    return state.reduce(bucket)
