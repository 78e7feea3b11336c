"""thinwire.exchange(): any kind of array in, the mean and the tool's figures out."""

import ml_dtypes
import numpy
import pandas
import pytest
import thinwire
import torch

FIGURES = [
    "compressor", "workers", "elements", "steps", "rounds", "setup_bytes", "payload_bytes", "second_bytes",
    "traffic_bytes", "bits_per_element", "nmse_mean", "nmse_worker", "seconds",
]  # fmt: skip


class OnlyDlpack:
    """An array of a framework that this package has never heard of."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def gradients(workers=3, shape=(40, 50), seed=0):
    generator = numpy.random.default_rng(seed)
    return [generator.standard_normal(shape).astype(numpy.float32) for _ in range(workers)]


def test_figures_have_the_tools_keys():
    _, figures = thinwire.exchange(gradients(), "casq:bits=2")
    assert list(figures) == FIGURES
    assert (figures["workers"], figures["elements"], figures["steps"]) == (3, 2000, 1)
    assert figures["compressor"] == thinwire.canonical_spec("casq:bits=2")
    assert figures["bits_per_element"] == 8 * figures["payload_bytes"] / 2000


def test_none_is_the_mean():
    arrays = gradients()
    mean, figures = thinwire.exchange(arrays, "none")
    numpy.testing.assert_allclose(mean, sum(arrays) / 3, rtol=1e-6, atol=1e-7)
    assert figures["nmse_mean"] < 1e-12 and figures["bits_per_element"] == 32


def test_the_mean_comes_in_the_kind_of_array_that_was_given():
    arrays = gradients()
    expected, _ = thinwire.exchange(arrays, "casq")
    from_torch, _ = thinwire.exchange([torch.from_numpy(array) for array in arrays], "casq")
    from_strangers, _ = thinwire.exchange([OnlyDlpack(array) for array in arrays], "casq")
    from_lists, _ = thinwire.exchange([array.tolist() for array in arrays], "casq")
    assert isinstance(from_torch, torch.Tensor) and isinstance(from_strangers, numpy.ndarray)
    for mean in (from_torch.numpy(), from_strangers, from_lists):
        assert mean.shape == (40, 50) and numpy.array_equal(mean, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_dtype_is_kept(dtype):
    mean, _ = thinwire.exchange([torch.ones(9, dtype=dtype), 3 * torch.ones(9, dtype=dtype)], "none")
    assert mean.dtype == dtype and torch.equal(mean, 2 * torch.ones(9, dtype=dtype))


class HostArray:
    """Like jax's: read through NumPy, whose DLPack knows no bfloat16."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array if dtype is None else self._array.astype(dtype)

    def __dlpack__(self, **_):
        raise BufferError("unsupported dtype")

    def __dlpack_device__(self):
        return 1, 0


class DeviceArray(HostArray):
    def __array__(self, dtype=None, copy=None):
        raise TypeError("implicit conversion to NumPy is not allowed")


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, numpy.float16, numpy.float64, ml_dtypes.float8_e4m3fn], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("kind", [numpy.asarray, HostArray])
def test_numpys_dtypes_are_kept_and_those_of_ml_dtypes(dtype, kind):
    arrays = [kind(numpy.full((3, 5), value, dtype)) for value in (1, 3)]
    mean, _ = thinwire.exchange(arrays, "none")
    assert type(mean) is numpy.ndarray and mean.dtype == dtype and (mean == numpy.full((3, 5), 2, dtype)).all()


def test_lists_and_tables_have_numpys_dtype():
    for given in ([[1.0, 2.0]], [[3.0, 4.0]]), [pandas.Series([1.0, 2.0]), pandas.Series([3.0, 4.0])]:
        mean, _ = thinwire.exchange(given, "none")
        assert mean.dtype == numpy.float64
    mean, _ = thinwire.exchange([pandas.DataFrame({"a": [1.0], "b": [2.0]}).astype("float32")] * 2, "none")
    assert mean.dtype == numpy.float32 and mean.shape == (1, 2)


def test_gradients_may_come_from_a_generator():
    arrays = gradients()
    mean, figures = thinwire.exchange((array for array in arrays), "casq")
    assert numpy.array_equal(mean, thinwire.exchange(arrays, "casq")[0]) and figures["workers"] == 3


def test_views_may_be_negative():
    array = gradients(1)[0]
    assert numpy.array_equal(thinwire.exchange([array[::-1]] * 2, "none")[0], array[::-1])
    negative = torch.imag(torch.complex(torch.zeros(4), torch.ones(4)).conj())
    assert negative.is_neg() and torch.equal(thinwire.exchange([negative] * 2, "none")[0], -torch.ones(4))


def test_inputs_are_left_alone():
    arrays = gradients()
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    thinwire.exchange(arrays, "casq")
    assert all(numpy.array_equal(array, copy) for array, copy in zip(arrays, copies, strict=True))


def test_strided_arrays_count_as_what_they_show():
    array = gradients(1)[0]
    mean, _ = thinwire.exchange([array.T, array.T], "none")
    assert numpy.array_equal(mean, array.T)


@pytest.mark.parametrize("spec", ["none", "bf16", "fp16", "casq:bits=1", "casq:bits=3"])
@pytest.mark.parametrize("value", [0.0, 1.0, -2.0])
def test_constants_arrive_exactly(spec, value):
    mean, _ = thinwire.exchange([numpy.full((33, 7), value, numpy.float32)] * 4, spec)
    assert numpy.array_equal(mean, numpy.full((33, 7), value))


@pytest.mark.parametrize("spec", ["none", "bf16", "casq:bits=2"])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (), (1,), (5, 0, 2), (3, 1, 2)])
@pytest.mark.parametrize("workers", [1, 2])
def test_any_shape_is_legal(spec, shape, workers):
    mean, figures = thinwire.exchange([numpy.full(shape, 4, numpy.float32)] * workers, spec)
    assert numpy.array_equal(mean, numpy.full(shape, 4)) and figures["workers"] == workers


def test_what_is_undefined_is_none():
    _, figures = thinwire.exchange([numpy.zeros(0, numpy.float32)], "casq")
    assert figures["bits_per_element"] is None and figures["nmse_mean"] is None


@pytest.mark.parametrize("spec", ["none", "casq:bits=2"])
def test_a_nan_anywhere_reaches_the_mean(spec):
    arrays = gradients()
    arrays[1][3, 4] = numpy.nan
    mean, figures = thinwire.exchange(arrays, spec)
    assert not numpy.isfinite(mean).all() and figures["nmse_mean"] is None


def test_the_same_seed_gives_the_same_bits():
    first, second = (thinwire.exchange(gradients(), "casq:bits=2", seed=7)[0] for _ in range(2))
    assert numpy.array_equal(first, second)


@pytest.mark.parametrize("spec", ["none", "bf16", "casq:bits=2", "casq:bits=2,reduce=scatter"])
def test_threads_do_not_change_a_bit(spec):
    arrays = gradients(shape=(500, 600))
    one, three = (thinwire.exchange(arrays, spec, threads=threads) for threads in (1, 3))
    assert numpy.array_equal(one[0], three[0])
    assert {**one[1], "seconds": 0} == {**three[1], "seconds": 0}


def test_rules_choose_by_name():
    arrays = gradients(shape=(2000,))
    layout = [{"name": "body.weight", "shape": [30, 50], "offset": 0}, {"name": "head.bias", "shape": [500]}]
    mean, _ = thinwire.exchange(arrays, "casq:bits=1", layout=layout, rules={"*.bias": "none"})
    exact = sum(arrays) / 3
    numpy.testing.assert_allclose(mean[1500:], exact[1500:], rtol=1e-6, atol=1e-7)
    assert not numpy.allclose(mean[:1500], exact[:1500], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (([], "none"), {}, "no gradients"),
        ((gradients(), "casq:bits=9"), {}, "bits"),
        (([numpy.ones(3), numpy.ones(4)], "none"), {}, "shape"),
        (([numpy.ones(3, int)], "none"), {}, "floating"),
        (([torch.ones(3, dtype=torch.int32)], "none"), {}, "floating"),
        (([numpy.ones(3)], "none"), {"layout": [{"name": "a", "shape": [4]}]}, "3 elements"),
        (([numpy.ones(3)], "none"), {"layout": [{"name": "a", "shape": [3], "offset": 1}]}, "begins at 1"),
        (([numpy.ones(3)], "none"), {"layout": [{"shape": [3]}]}, "layout is a list"),
        (([numpy.ones(4)], "none"), {"layout": [{"name": "a", "shape": [2]}, {"name": "a", "shape": [2]}]}, "a"),
        (([numpy.ones(3)], "none"), {"rules": {"*": 3}}, "rules map"),
        (([numpy.ones(3)], "none"), {"seed": 2**64}, "seed"),
        (([numpy.ones(3)], "none"), {"seed": 1.5}, "seed = 1.5; allowed: 0 to"),
        (([numpy.ones(3)], None), {}, "a spec like .* got None"),
        (([numpy.ones(3)], "none"), {"rules": {"weight": "none"}}, "'weight' matches no parameter; there are 1: gradient"),
        ((5, "none"), {}, "a list of arrays, one for each worker; got 5"),
        (([[1.0], [1.0, 2.0]], "none"), {}, "differ in shape"),
        (([[[1.0], [1.0, 2.0]]], "none"), {}, "of type list cannot be read as an array"),
        (([["a"]], "none"), {}, "floating type; got <U1"),
        (([None], "none"), {}, "floating type; got object"),
        (([DeviceArray(numpy.ones(3))], "none"), {}, "DeviceArray cannot be read as an array on the host: implicit"),
        (([torch.eye(3).to_sparse()], "none"), {}, "dense and on the host; got a tensor of layout torch.sparse_coo"),
        (([torch.ones(3, device="meta")], "none"), {}, "on the host; got .* on meta"),
        (([numpy.ones(3, complex)], "none"), {}, "floating type; got complex128"),
        (([numpy.ones(3)], "none"), {"threads": 0}, "threads = 0; allowed: 1 to 256"),
        (([numpy.ones(3)], "none"), {"threads": -1}, "threads"),
        (([numpy.ones(3)], "none"), {"threads": 10**12}, "threads"),
    ],
)
def test_wrong_arguments_are_named(arguments, options, said):
    with pytest.raises(thinwire.ArgumentError, match=said):
        thinwire.exchange(*arguments, **options)
