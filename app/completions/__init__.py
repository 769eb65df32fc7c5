"""`POST /v1/completions`: request model, prompts, run, and the two ways to answer (JSON body, event stream).

Change here: a request field (`request.py`), what is refused (`rules.py`), how it reaches the engine (`sampling.py`,
`prompts.py`), what the answer holds (`reply.py`).
"""
