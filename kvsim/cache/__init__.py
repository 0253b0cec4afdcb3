"""What holds cached blocks: the pool, the index of prefixes, eviction and tiers."""
