"""What BENCHMARKS.md is made with. Not part of the wheel: it measures the project, and needs its checkout."""
