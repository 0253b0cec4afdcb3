"""What a run says: throughput, latency, hit rate, cost, what binds."""
