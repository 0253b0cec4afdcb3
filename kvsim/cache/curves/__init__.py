"""Hit rates of a block cache as a function of its capacity, without any timing: exact, and fast."""
