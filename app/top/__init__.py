"""`t5gemma2 top`: what a running server's draft is worth, on a terminal or as JSON, over HTTP only.

`server` looks at the server, `history` keeps what changed between looks, `picture` shows both.
"""
