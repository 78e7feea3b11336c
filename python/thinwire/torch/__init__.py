"""thinwire for PyTorch's DistributedDataParallel: one line attaches it to a model."""

from thinwire.torch.attaching import attach
from thinwire.torch.attachment import Attachment
from thinwire.torch.recorder import GradientRecorder, read_recording

__all__ = ["Attachment", "GradientRecorder", "attach", "read_recording"]
