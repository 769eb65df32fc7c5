"""Measurements of the engine itself on a GPU, at the published model's shapes with random weights.

python -m plugin.benchmarks.engine --out app/bench/results/h200.json
"""
