"""The demo's word problems; imports no torch, so that the benchmark client can ask them, too.

Change here: a kind of problem and its wordings (`kinds`), the numbers it draws (`draws`), the names and things in it
(`words`). Whatever changes here makes another demo: build it again by `t5gemma2 train demo`.
"""
