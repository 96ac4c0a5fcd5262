"""Results of serving benchmarks, which measure an engine at its front: TTFT, time between tokens, throughput."""
