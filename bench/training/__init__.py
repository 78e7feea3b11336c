"""The main job: data-parallel training over a slow network, compressor against compressor."""
