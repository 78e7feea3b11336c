"""thinwire for PyTorch: attach() to a DistributedDataParallel or FSDP2 model, or LocalSteps for workers that train alone for a while."""

from thinwire.torch.attaching import attach
from thinwire.torch.attachment import Attachment
from thinwire.torch.local_steps import LocalSteps
from thinwire.torch.recorder import GradientRecorder, read_recording
from thinwire.torch.shard_attachment import ShardAttachment

__all__ = ["Attachment", "GradientRecorder", "LocalSteps", "ShardAttachment", "attach", "read_recording"]
