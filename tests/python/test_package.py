"""The installed package is whole, and has one version."""

import importlib.metadata

import thinwire


def test_the_version_is_the_same_in_the_library_and_in_the_metadata():
    assert thinwire.__version__ == importlib.metadata.version("thinwire")
