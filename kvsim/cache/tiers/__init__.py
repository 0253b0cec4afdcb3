"""Tiers below the GPUs' memory: what they keep, how blocks get there and back, and what moving them takes."""
