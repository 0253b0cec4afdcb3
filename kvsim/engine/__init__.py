"""The serving engine: scheduler and KV cache manager, plain (`reference`) and fast (`core`)."""
