"""What ``auto`` takes of a step's gradients of this worker, before they are averaged."""

from collections.abc import Callable, Iterator, Sequence

import torch

from thinwire.torch.model_parameters import REDUCERS_TYPES, Travelling, TravellingParameters

Agree = Callable[[Sequence[float]], list[float]]  # the greatest of all workers' numbers, one by one

_SAMPLE = 2**21  # elements, about
_FEW = 0.25  # of a gradient's rows: where workers use more, to find out which saves little
_COMPARED = 4096  # rows of a gradient, to know how many all workers use together


class Sample:
    """Gradients of one type, on which prospects are tried: the model in small, of every gradient as large a share of its rows."""

    def __init__(self, elements: int = 0):
        """elements: of all the gradients that will be offered."""
        self._every = max(1, -(-elements // _SAMPLE))  # row
        self._parts: list[torch.Tensor] = []
        self._travelling: list[Travelling] = []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def offer(self, gradient: torch.Tensor, name: str, shape: list[int]) -> None:
        """gradient: flat."""
        if self._parts and gradient.dtype != self._parts[0].dtype:
            return
        rows = gradient.view(shape[0], -1)[:: self._every]
        self._parts.append(rows.detach().to("cpu", copy=True).flatten())
        self._travelling.append(Travelling(name, [len(rows), *shape[1:]], gradient.dtype, torch.device("cpu")))

    @property
    def values(self) -> torch.Tensor:
        return torch.cat(self._parts) if self._parts else torch.empty(0)

    def parameters(self, of: TravellingParameters) -> TravellingParameters:
        """What a reducer of the values alone is told."""
        return TravellingParameters(self._travelling, of.names_in_model)


class UsedRows:
    """Which rows of a step's gradients have anything in them. Of embeddings these are few: of words that do not occur all is zero."""

    def __init__(self) -> None:
        self._shares: dict[int, float] = {}  # by parameter: of its rows, that this worker uses
        self._compared: dict[int, torch.Tensor] = {}  # of rows that lie apart evenly: 1 if it is used

    def see(self, gradient: torch.Tensor, index: int, rows: int) -> None:
        used = gradient.detach().view(rows, -1).any(dim=1).float()  # NaN counts as something
        self._shares[index] = float(used.mean())
        self._compared[index] = used[:: -(-rows // _COMPARED)].cpu()

    def agreed_shares(self, count: int, agree: Agree) -> dict[int, float]:
        """Of the model's ``count`` parameters those of which few rows are used, though some: with the share that some worker uses. All
        workers together."""
        largest = agree([self._shares.get(index, 1.0) for index in range(count)])
        few = [index for index, share in enumerate(largest) if 0 < share <= _FEW]
        if not few:
            return {}
        by_any = torch.tensor(agree(torch.cat([self._compared[index] for index in few]).tolist()))
        parts = by_any.split([len(self._compared[index]) for index in few])
        # Of rows so few that none is compared the largest share of a worker tells.
        shares = {index: max(largest[index], float(part.mean())) for index, part in zip(few, parts, strict=True)}
        return {index: share for index, share in shares.items() if share <= _FEW}


def gradients_in(bucket: torch.Tensor, parameters: list[int], of: TravellingParameters) -> Iterator[tuple[int, torch.Tensor]]:
    """Of a dense bucket or of a sparse one, flat and dense, those that would be compressed, each with its parameter's index."""
    begin = 0
    for index in parameters:
        end = begin + of.elements[index]
        if bucket.dtype in REDUCERS_TYPES and not of.is_small(index):
            yield index, bucket.to_dense().flatten() if bucket.is_sparse else bucket[begin:end]
        begin = end
