"""Many scenarios at once: axes, executors, a folder of results that can be continued, one table."""
