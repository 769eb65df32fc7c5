"""The frozen verifier in training: loading it, its states for a draft, packed rows and its own answers."""
