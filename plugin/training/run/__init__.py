"""A training run: steps, validation, checkpoints, and going on exactly from the newest.

Change here: the resume format and what stands in a checkpoint (`checkpoint`, `model_card`), the names and the life of
checkpoints (`folder`), the learning rate (`schedule`), a step (`trainer`, `step`), a metric (`metrics`,
`evaluation`).
"""
