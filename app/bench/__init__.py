"""The benchmark client: the published cards' protocol against any OpenAI-compatible server, over HTTP only.

A run is a grid of cells, arm x prompt set x concurrency. An arm is a way to serve: the verifier alone, or a
draft at some K. `command` reads the flags, `grid` walks the cells, `report` turns them into rows.
"""
