"""Small models of known kinds, from configurations, and what they learn here: words of Debian's texts, and Fashion-MNIST."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import Dataset

from bench import text
from bench.training import data

EPOCH = 50  # steps, if nothing else is said; checkpoints are written between epochs, where every trainer knows how to go on
_WORDS, _WINDOW = 1999, 48  # the rarer ones are one more; at the last number BERT has its mask
_UNKNOWN, _MASK = _WORDS, _WORDS + 1


@dataclass(frozen=True)
class Recipe:
    """make: the model. samples(count, part): of "train" or "test"."""

    make: Callable[[], nn.Module]
    samples: Callable[[int, str], Dataset]
    batch: int
    learning_rate: float
    tests: int = 512  # samples that nobody trains with
    clip: float = 1.0
    accumulates: int = 1  # backward passes to a step
    autocast: bool = False  # to bfloat16
    checkpoints: bool = False  # activations are computed again
    decays: bool = False  # the learning rate rises for a tenth of the steps, then falls to 0, both in straight lines


class Samples(Dataset):
    """Columns, each of a tensor with as many rows."""

    def __init__(self, **columns: torch.Tensor):
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: values[index] for name, values in self.columns.items()}


def _windows(count: int, part: str) -> torch.Tensor:
    """From places all over the first nine tenths of the text, or its last one."""
    words = torch.from_numpy(text.load().words).clamp(max=_UNKNOWN)
    border = len(words) * 9 // 10
    first, last = (0, border) if part == "train" else (border, len(words))
    begins = torch.randint(first, last - _WINDOW, (count,), generator=torch.Generator().manual_seed(len(part)))
    return torch.stack([words[begin : begin + _WINDOW] for begin in begins.tolist()])


def _next_words(count: int, part: str) -> Dataset:
    windows = _windows(count, part)
    return Samples(input_ids=windows, labels=windows)


def _masked_words(count: int, part: str) -> Dataset:
    windows = _windows(count, part)
    masked = torch.rand(windows.shape, generator=torch.Generator().manual_seed(1)) < 0.15
    return Samples(input_ids=windows.masked_fill(masked, _MASK), labels=windows.masked_fill(~masked, -100))


def _images(count: int, part: str) -> Dataset:
    images = data.load("train" if part == "train" else "t10k")
    pixels, labels = images.batch(torch.arange(count) % len(images))
    return Samples(pixel_values=pixels, labels=labels)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=_WORDS + 1, n_positions=_WINDOW, n_embd=128, n_layer=2, n_head=4, resid_pdrop=0.0,
                                      embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))  # fmt: skip


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(vocab_size=_WORDS + 2, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512,
                                      max_position_embeddings=_WINDOW, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))  # fmt: skip


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(image_size=28, patch_size=7, num_channels=1, hidden_size=96, num_hidden_layers=3, num_labels=10,
                                               num_attention_heads=4, intermediate_size=384))  # fmt: skip


RECIPES = {
    "gpt2": Recipe(_gpt2, _next_words, batch=8, learning_rate=1e-3, accumulates=2),
    "bert": Recipe(_bert, _masked_words, batch=16, learning_rate=1e-3, autocast=True, checkpoints=True),
    "vit": Recipe(_vit, _images, batch=32, learning_rate=1e-3, tests=10_000, decays=True),
}


def made(recipe: Recipe, seed: int) -> nn.Module:
    """The same on every worker and in every run."""
    torch.manual_seed(seed)
    model = recipe.make()
    if recipe.checkpoints:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def loss_of(model: nn.Module, samples: Samples) -> float:
    """The mean over samples that nobody has trained with."""
    was_training = model.training
    model.eval()
    total = 0.0
    with torch.no_grad():
        for part in torch.arange(len(samples)).split(512):
            total += model(**samples[part]).loss.item() * len(part)
    model.train(was_training)
    return total / len(samples)
