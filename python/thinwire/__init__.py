"""Compressed gradient exchange for data-parallel training on slow networks.

``thinwire.torch.attach(ddp_model, "casq:bits=2")`` makes a DistributedDataParallel model exchange compressed gradients.
``thinwire.exchange`` tries a compressor on some arrays; ``thinwire.compressors`` lists what there is.
"""

from thinwire._exchange import exchange
from thinwire._native import (
    ArgumentError,
    Error,
    PayloadError,
    PeerError,
    StateError,
    canonical_spec,
    compressors,
)
from thinwire._native import version as _version

__version__ = _version()

__all__ = [
    "ArgumentError",
    "Error",
    "PayloadError",
    "PeerError",
    "StateError",
    "__version__",
    "canonical_spec",
    "compressors",
    "exchange",
]
