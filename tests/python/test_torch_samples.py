"""What ``auto`` takes of gradients: the model in small, and which rows are used."""

import pytest
import torch
from thinwire.torch.model_parameters import ModelParameters
from thinwire.torch.samples import Sample, UsedRows, gradients_in
from torch import nn


@pytest.mark.parametrize("rows, columns", [(5, 7), (5000, 800), (2**23, 1), (1, 2**22), (1, 2**23 + 1)])
def test_a_sample_has_as_large_a_share_of_every_gradient(rows, columns):
    large, other = torch.randn(rows, columns), torch.randn(4000, 300)
    sample = Sample(large.numel() + other.numel())
    sample.offer(large.flatten(), "large", [rows, columns])
    sample.offer(other.flatten(), "other", [4000, 300])
    sample.offer(torch.randn(2000).bfloat16(), "of another type", [50, 40])
    parameters = sample.parameters(ModelParameters(nn.Linear(3, 3)))
    assert parameters.names == ["large", "other"] and sum(parameters.elements) == len(sample) == len(sample.values)
    every = -(-(large.numel() + other.numel()) // 2**21)
    assert torch.equal(sample.values, torch.cat([large[::every].flatten(), other[::every].flatten()]))
    assert parameters.layout == [("large", [-(-rows // every), columns]), ("other", [-(-4000 // every), 300])]
    sample.values.zero_()
    assert sample.values.norm() > 0  # it gives away no memory of its own


def test_no_gradients():
    assert len(Sample()) == 0 and Sample().values.shape == (0,)


def shares_of(workers, count):
    """What all agree on, of the gradients of each worker: pairs of index and matrix."""
    seen = []
    for gradients in workers:
        used = UsedRows()
        for index, gradient in gradients:
            used.see(gradient.flatten(), index, len(gradient))
        seen.append(used)
    said = []  # what each has said in each round

    def agreed(worker):
        rounds = iter(range(9))

        def agree(numbers):
            turn = next(rounds)
            if len(said) == turn:
                said.append({})
            said[turn][worker] = list(numbers)
            return [max(each) for each in zip(*said[turn].values(), strict=True)]

        return agree

    for _ in range(3):  # until each has heard all the others in both rounds
        answers = [used.agreed_shares(count, agreed(worker)) for worker, used in enumerate(seen)]
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def using(*rows, of=100):
    gradient = torch.zeros(of, 3)
    gradient[list(rows), 1] = 1e-30
    return gradient


def test_rows_that_some_worker_uses():
    full = torch.ones(100, 3)
    assert shares_of([[(0, using(1, 2)), (2, full)], [(0, using(2, 3)), (2, full)]], 3) == {0: pytest.approx(0.03)}
    assert shares_of([[(0, using())], [(0, using(4))]], 1) == {0: pytest.approx(0.01)}
    assert shares_of([[(0, using())], [(0, using())]], 1) == {}  # nothing is known of what is not used at all
    assert shares_of([[(0, using(*range(26)))], [(0, using(4))]], 1) == {}
    assert shares_of([[(0, using(*range(0, 20)))], [(0, using(*range(50, 70)))]], 1) == {}  # two fifths together
    assert shares_of([[(0, using(1))], []], 1) == {}  # which the other has not seen
    spoilt = using(1)
    spoilt[5] = float("nan")
    assert shares_of([[(0, spoilt)]] * 2, 1) == {0: pytest.approx(0.02)}


def test_of_many_rows_some_are_compared():
    def every(step, first):
        gradient = torch.zeros(50_000, 2)
        gradient[first::step] = 1
        return [(0, gradient)]

    assert shares_of([every(50, 0), every(50, 1)], 1) == {0: pytest.approx(0.04, rel=0.1)}
    assert shares_of([every(10, first) for first in range(4)], 1) == {}  # each a tenth, two fifths together
    rare = [[(0, using(7, 11, 12, of=100_000))], [(0, using(13, of=100_000))]]  # none of which is compared
    assert shares_of(rare, 1) == {0: pytest.approx(3e-5)}


def test_gradients_of_a_bucket():
    model = nn.ModuleList([nn.Linear(40, 50), nn.Embedding(300, 4), nn.Linear(3, 2)])
    parameters = ModelParameters(model)
    weight, embedding = torch.randn(50, 40), torch.randn(300, 4)
    bucket = torch.cat([embedding.flatten(), torch.zeros(50), weight.flatten(), torch.zeros(6)])
    indices = [parameters.names.index(name) for name in ("1.weight", "0.bias", "0.weight", "2.weight")]
    found = dict(gradients_in(bucket, indices, parameters))
    assert list(found) == [indices[0], indices[2]]  # the others are small
    assert torch.equal(found[indices[0]], embedding.flatten()) and torch.equal(found[indices[2]], weight.flatten())
    sparse = torch.sparse_coo_tensor([[7, 7, 9]], torch.ones(3, 4), (300, 4), check_invariants=True)
    (((index, dense),)) = gradients_in(sparse, indices[:1], parameters)
    assert index == indices[0] and dense.view(300, 4)[7].tolist() == [2.0] * 4 and dense.sum() == 12
    assert not list(gradients_in(bucket.double(), indices, parameters))
