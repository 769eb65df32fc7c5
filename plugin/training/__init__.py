"""`t5gemma2 train`: the rooms of training, from the bottom up.

`data` (what is learned; `data/problems`, the demo's word problems), `draft` (the model, its losses, its folder),
`verifier` (the frozen one's states), `run` (steps, checkpoints, resuming) and `demo` (the bundled models). `settings`
holds the recipe's numbers, `flags` the command line's, `entry` leads from them to a run. Every import between rooms
points down; a test holds that.
"""
