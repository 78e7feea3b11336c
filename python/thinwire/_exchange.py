"""One exchange between workers of this process, for any arrays."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy

from thinwire import _native
from thinwire._arguments import LayoutPairs, Rules, checked_seed, checked_spec, checked_threads, layout_pairs, used_rules
from thinwire._native import ArgumentError


def exchange(
    gradients: Iterable[Any],
    spec: str,
    layout: Sequence[Mapping[str, Any]] | None = None,
    seed: int = 0,
    rules: Rules = None,
    threads: int = 1,
) -> tuple[Any, dict[str, Any]]:
    """Averages ``gradients`` with the compressor ``spec``, as workers that are threads of this process would.

    gradients: one array for each worker, all of one shape and on the host: NumPy, torch, jax, anything with DLPack or that
        numpy.asarray() takes; of any floating type, bfloat16 of ml_dtypes too.
    layout: the parameters that an array consists of, one behind the other: dicts with ``name``, ``shape`` and, if you
        like, ``offset``. None: the array is one parameter of its own shape.
    rules: other specs for some parameters, by glob patterns of their names; the first that matches decides.
    threads: of each worker, that encode and decode; the result does not depend on their number.

    Returns the decoded mean, in the shape and dtype of the first gradient (a torch tensor for torch tensors, else a NumPy
    array; the dtype that numpy.asarray() gives lists and tables), and the figures that ``thinwire exchange --json`` prints: bytes
    and seconds of a worker, errors as parts of the energy, None where undefined. Raises ArgumentError.
    """
    given = [_on_host(gradient) for gradient in _listed(gradients)]
    if not given:
        raise ArgumentError("no gradients: one array for each worker is needed")
    arrays = [_as_floats(array) for array in given]
    shape = arrays[0].shape
    if any(array.shape != shape for array in arrays):
        raise ArgumentError(f"gradients differ in shape: {', '.join(str(array.shape) for array in arrays)}")
    pairs: LayoutPairs = [("gradient", list(shape))] if layout is None else layout_pairs(layout)
    used = used_rules(rules, [name for name, _ in pairs])
    mean, figures = _native.exchange(
        arrays, pairs, checked_spec(spec), used, checked_seed(seed), checked_threads(threads)
    )
    return _like(given[0], mean.reshape(shape)), figures


def _listed(gradients: Iterable[Any]) -> list[Any]:
    try:
        return list(gradients)
    except TypeError:
        raise ArgumentError(f"gradients are a list of arrays, one for each worker; got {gradients!r}") from None


def _is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")  # not imported for those who do without it
    return torch is not None and isinstance(array, torch.Tensor)


def _on_host(gradient: Any) -> Any:
    """A torch tensor, or a NumPy array of the gradient's own dtype."""
    if _is_torch(gradient) or isinstance(gradient, numpy.ndarray):
        return gradient
    # DLPack has no word for bfloat16 that NumPy knows.
    from_dlpack = hasattr(gradient, "__dlpack__") and not hasattr(gradient, "__array__")
    try:
        return numpy.from_dlpack(gradient) if from_dlpack else numpy.asarray(gradient)
    except Exception as error:  # whatever a foreign array raises
        raise ArgumentError(f"a gradient of type {type(gradient).__name__} cannot be read as an array on the host: {error}") from error


def _as_floats(array: Any) -> numpy.ndarray:
    """A float32 array in C order; a view where the array is one already."""
    if _is_torch(array):
        if not array.is_floating_point():
            raise ArgumentError(f"gradients must be of a floating type; got {array.dtype}")
        if array.device.type != "cpu" or array.layout != sys.modules["torch"].strided:
            raise ArgumentError(f"gradients must be dense and on the host; got a tensor of layout {array.layout} on {array.device}")
        array = array.detach().float().resolve_neg().numpy()
    if not _is_floating(array.dtype):
        raise ArgumentError(f"gradients must be of a floating type; got {array.dtype}")
    # Not ascontiguousarray: it gives a scalar a dimension.
    return numpy.asarray(array, dtype=numpy.float32, order="C")


def _is_floating(dtype: numpy.dtype) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))  # NumPy does not know the kind of ml_dtypes' types


def _like(gradient: Any, mean: numpy.ndarray) -> Any:
    if _is_torch(gradient):
        return sys.modules["torch"].from_numpy(mean).to(gradient.dtype)
    return mean.astype(gradient.dtype, copy=False)
