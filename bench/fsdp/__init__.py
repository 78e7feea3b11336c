"""Steps of fully_shard() on shaped links: as it is, with thinwire's exact reduce-scatter, and compressed."""
