"""Buckets that are sparse tensors: DDP hands over such a gradient alone (nn.Embedding(sparse=True), nn.EmbeddingBag)."""

import torch


class DenseForms:
    """Dense memory for sparse gradients, one for each parameter; zero between steps, so that only used rows are touched."""

    def __init__(self) -> None:
        self._of_parameter: dict[int, torch.Tensor] = {}

    def take(self, parameter: int, like: torch.Tensor) -> torch.Tensor:
        """Zeros. What is not given back, because a step failed, is not used again."""
        dense = self._of_parameter.pop(parameter, None)
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device) if dense is None else dense

    def give_back(self, parameter: int, dense: torch.Tensor) -> None:
        self._of_parameter[parameter] = dense


class SparseBucket:
    """One sparse gradient on its way: its dense form travels, and the mean is sparse again.

    The mean is coalesced, and the same on all workers: its rows are those in which the mean is not zero.
    """

    def __init__(self, gradient: torch.Tensor, parameter: int, forms: DenseForms):
        gradient = gradient.coalesce()
        self._forms, self._parameter = forms, parameter
        self._dimensions = gradient.sparse_dim()
        self._dense = forms.take(parameter, gradient)
        self._dense.index_put_(tuple(gradient.indices()), gradient.values())
        self._used: torch.Tensor | None = None  # rows of the mean
        self.mean = gradient  # until take_mean()

    @property
    def flat(self) -> torch.Tensor:
        return self._dense.view(-1)

    def _rows(self) -> torch.Tensor:
        return self._dense.view(self._dense.shape[: self._dimensions].numel(), -1)

    def take_mean(self) -> None:
        """When the dense form holds the mean."""
        shape = self._dense.shape[: self._dimensions]
        rows = self._rows()
        used = rows.any(dim=1).nonzero().squeeze(1)  # NaN counts as something
        values = rows[used]
        self._used = used
        indices = torch.stack(torch.unravel_index(used, shape))
        self.mean = torch.sparse_coo_tensor(
            indices, values.view(-1, *self._dense.shape[self._dimensions :]), self._dense.shape, is_coalesced=True, check_invariants=False
        )

    def release(self, committed: bool) -> None:
        """Once the step has ended: until then the reducer may want to see its means. Of one that failed nothing is used again."""
        if committed and self._used is not None:
            self._rows()[self._used] = 0
            if self._used.is_cuda:  # memory of the lane's stream, which must not have it again before this one has read it
                self._used.record_stream(torch.cuda.current_stream(self._used.device))
            self._forms.give_back(self._parameter, self._dense)
