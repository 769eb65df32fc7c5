"""Training: the demo's word problems and verifier, and drafts of every family against a frozen verifier."""
