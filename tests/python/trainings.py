"""Small trainings by the trainers that thinwire has one line for, as test_trainers.py starts them: by torchrun, or by themselves.

    python trainings.py TRAINER FOLDER STEPS [STEPS ...] [--new-each-time] [--again]

Trains up to so many steps in all, each time with a new trainer that goes on from the folder's last checkpoint, or that begins anew. Prints what
rank 0 knows of each training as a line of JSON.
"""

import argparse
import hashlib
import json
import os

import torch
import torch.distributed as dist
from torch import nn

SPEC = "casq:bits=2"
EPOCH = 3  # steps


def is_lead():
    return os.environ.get("RANK", "0") == "0"


def workers():
    return int(os.environ.get("WORLD_SIZE", "1"))


class Flip(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, inputs, labels):
        outputs = self.layers(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}


def samples():
    inputs = torch.randn(EPOCH * 8 * workers(), 64, generator=torch.Generator().manual_seed(1))
    return [{"inputs": each, "labels": each.flip(0)} for each in inputs]


def by_transformers(folder, steps, resumes, again):
    from transformers import Trainer, TrainingArguments

    import thinwire.transformers

    torch.manual_seed(0)
    trainer = Trainer(
        model=Flip(),
        args=TrainingArguments(folder, max_steps=steps, save_steps=EPOCH, logging_steps=1, lr_scheduler_type="constant", learning_rate=1e-2,
                               per_device_train_batch_size=8, use_cpu=True, report_to=[], disable_tqdm=True, optim="sgd"),
        train_dataset=samples())
    callback = thinwire.transformers.attach(trainer, SPEC)
    trainer.train(resume_from_checkpoint=resumes)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry][-1]
    digest = digest_of(trainer.model)
    if again:
        trainer.train()
    file = f"{folder}/checkpoint-{steps}/thinwire.pt"
    return digest, callback.attachment, logged, os.path.exists(file)


def by_lightning(folder, steps, resumes, again):
    import pytorch_lightning as lightning
    from pytorch_lightning.callbacks import ModelCheckpoint
    from pytorch_lightning.loggers.logger import DummyLogger

    import thinwire.lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.flip = Flip()

        def training_step(self, batch, _):
            return self.flip(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    class Log(DummyLogger):
        metrics = {}

        def log_metrics(self, metrics, step=None):
            self.metrics.update(metrics)

    def trainer(until, log):
        strategy = {"strategy": "ddp", "devices": workers()} if workers() > 1 else {"devices": 1}
        return lightning.Trainer(**strategy, accelerator="cpu", max_epochs=until // EPOCH, logger=log, log_every_n_steps=1, enable_progress_bar=False,
                                 enable_model_summary=False, callbacks=[callback, kept])

    # Written when an epoch ends: the next one then has its own order of samples.
    kept = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True)
    saved = max((int(name[5:-5]) for name in os.listdir(folder) if name.endswith(".ckpt")), default=0) if resumes else 0
    callback, module, log = thinwire.lightning.ThinwireCallback(SPEC), Module(), Log()
    loader = torch.utils.data.DataLoader(samples(), batch_size=8)
    trainer(steps, log).fit(module, loader, ckpt_path=f"{folder}/step={saved}.ckpt" if resumes else None)
    digest = digest_of(module)
    if again:
        trainer(EPOCH, log).fit(module, loader)
    return digest, callback.attachment, log.metrics, os.path.exists(f"{folder}/step={steps}.ckpt")


def by_accelerate(folder, steps, resumes, again):
    from accelerate import Accelerator

    import thinwire.accelerate

    class Progress:
        step = 0

        def state_dict(self):
            return {"step": self.step}

        def load_state_dict(self, state):
            self.step = state["step"]

    accelerator, module = Accelerator(cpu=True), Flip()
    model, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=1e-2))
    attachment = thinwire.accelerate.attach(accelerator, model, SPEC)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if resumes:
        accelerator.load_state(f"{folder}/last")
    logged = {}
    accelerator.log = lambda values, step: logged.update(values)  # a tracker wants a library of its own
    while progress.step < steps:
        random = torch.Generator().manual_seed(100 * progress.step + accelerator.process_index)
        inputs = torch.randn(8, 64, generator=random)
        optimizer.zero_grad()
        accelerator.backward(model(inputs, inputs.flip(1))["loss"])
        optimizer.step()
        progress.step += 1
    thinwire.accelerate.log(accelerator, attachment, progress.step)
    accelerator.save_state(f"{folder}/last")
    return digest_of(module), attachment, logged, True


def digest_of(module):
    return hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in module.parameters())).hexdigest()


def main():
    options = argparse.ArgumentParser()
    options.add_argument("trainer", choices=["transformers", "lightning", "accelerate"])
    options.add_argument("folder")
    options.add_argument("steps", type=int, nargs="+")
    options.add_argument("--new-each-time", action="store_true")
    options.add_argument("--again", action="store_true", help="the last one trains once more")
    options = options.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    for number, steps in enumerate(options.steps):
        resumes = bool(os.listdir(options.folder)) and not options.new_each_time
        again = options.again and number == len(options.steps) - 1
        if dist.is_initialized():
            dist.barrier()  # all have looked whether there is a checkpoint
        digest, attachment, logged, is_saved = globals()[f"by_{options.trainer}"](options.folder, steps, resumes, again)
        told = {"digest": digest, "resumes": resumes, "workers": workers(), "saved": is_saved, "steps": attachment and attachment.stats()["steps"],
                "logged": {name: value for name, value in logged.items() if name.startswith("thinwire/")}}  # fmt: skip
        if is_lead():
            print(json.dumps(told), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
