"""The benchmark; ``scripts/bench --help`` tells what it measures."""
