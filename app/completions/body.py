"""The answer in one piece: every choice gathered, then one JSON body."""

from __future__ import annotations

from app.completions.choices import ChoiceWriter
from app.completions.reply import Completion
from app.completions.run import Job, steps_of
from app.engine import Engine


async def completion(engine: Engine, job: Job, writer: ChoiceWriter) -> Completion:
    """Runs the job to its end: one step a prompt, which holds its samples whole."""
    async with steps_of(engine, job) as steps:
        choices = [choice async for prompt, step in steps for choice in writer.write(prompt, step)]
    return writer.completion(sorted(choices, key=lambda choice: choice.index))
