"""One exchange between workers of this process, for any arrays."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from thinwire import _native
from thinwire._arguments import LayoutPairs, Rules, checked_seed, checked_spec, checked_threads, layout_pairs, used_rules


def exchange(
    gradients: Sequence[Any],
    spec: str,
    layout: Sequence[Mapping[str, Any]] | None = None,
    seed: int = 0,
    rules: Rules = None,
    threads: int = 1,
) -> tuple[Any, dict[str, Any]]:
    """Averages ``gradients`` with the compressor ``spec``, as workers that are threads of this process would.

    gradients: one array for each worker, all of one shape: NumPy, torch (CPU) or anything else with DLPack.
    layout: the parameters that an array consists of, one behind the other: dicts with ``name``, ``shape`` and, if you
        like, ``offset``. None: the array is one parameter of its own shape.
    rules: other specs for some parameters, by glob patterns of their names; the first that matches decides.
    threads: of each worker, that encode and decode; the result does not depend on their number.

    Returns the decoded mean, in the shape and dtype of the gradients (a torch tensor for torch tensors, else a NumPy
    array), and the figures that ``thinwire exchange --json`` prints: bytes and seconds of a worker, errors as parts of
    the energy, None where undefined. Raises ArgumentError.
    """
    arrays = [_as_numpy(gradient) for gradient in gradients]
    if not arrays:
        raise _native.ArgumentError("no gradients: one array for each worker is needed")
    shape = arrays[0].shape
    if any(array.shape != shape for array in arrays):
        raise _native.ArgumentError(f"gradients differ in shape: {', '.join(str(array.shape) for array in arrays)}")
    pairs: LayoutPairs = [("gradient", list(shape))] if layout is None else layout_pairs(layout)
    mean, figures = _native.exchange(
        arrays, pairs, checked_spec(spec), used_rules(rules, (name for name, _ in pairs)), checked_seed(seed), checked_threads(threads)
    )
    return _like(gradients[0], mean.reshape(shape)), figures


def _is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")  # not imported for those who do without it
    return torch is not None and isinstance(array, torch.Tensor)


def _as_numpy(array: Any) -> numpy.ndarray:
    """A float32 array in C order; a view where the array is one already."""
    if _is_torch(array):
        if not array.is_floating_point():
            raise _native.ArgumentError(f"gradients must be of a floating type; got {array.dtype}")
        array = array.detach().float().numpy()
    elif not isinstance(array, numpy.ndarray):
        array = numpy.from_dlpack(array) if hasattr(array, "__dlpack__") else numpy.asarray(array)
    if array.dtype.kind != "f":
        raise _native.ArgumentError(f"gradients must be of a floating type; got {array.dtype}")
    # Not ascontiguousarray: it gives a scalar a dimension.
    return numpy.asarray(array, dtype=numpy.float32, order="C")


def _like(gradient: Any, mean: numpy.ndarray) -> Any:
    if _is_torch(gradient):
        return sys.modules["torch"].from_numpy(mean).to(gradient.dtype)
    return mean.astype(getattr(gradient, "dtype", numpy.float32), copy=False) if isinstance(gradient, numpy.ndarray) else mean
