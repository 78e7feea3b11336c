"""Hugging Face Trainer, PyTorch Lightning and accelerate with thinwire: python -m bench.trainers."""
