"""What scripts/bench runs: contestants, workloads, measuring and reporting."""
