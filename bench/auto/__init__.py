"""Whether `auto` takes the spec that is fastest, on a grid of links and models."""
