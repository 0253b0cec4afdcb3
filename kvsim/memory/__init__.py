"""HBM budget, KV geometry and capacity: pure functions of profiles and settings."""
