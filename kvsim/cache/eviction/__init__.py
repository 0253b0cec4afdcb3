"""Eviction policies: which free block of the pool is given up first. One class a file."""
