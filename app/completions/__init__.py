"""`POST /v1/completions`: request model, prompts, run, and the two ways to answer (JSON body, event stream)."""
