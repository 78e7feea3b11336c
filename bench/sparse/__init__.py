"""Measures what sparse gradients cost, way by way."""
