"""thinwire for PyTorch's DistributedDataParallel: one line attaches it to a model."""

from thinwire.torch.attachment import Attachment, attach

__all__ = ["Attachment", "attach"]
