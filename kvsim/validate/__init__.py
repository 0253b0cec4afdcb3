"""Checks of kvsim against what real engines, GPUs and published runs did."""
