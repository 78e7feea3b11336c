"""Compressed gradient exchange for data-parallel training on slow networks."""

from thinwire._native import version as _version

__version__ = _version()
