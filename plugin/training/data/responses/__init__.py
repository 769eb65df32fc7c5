"""The verifier's own answers as training data: who is asked, and the file that keeps what was answered.

A draft is judged by how often it says what the verifier would have said, and learns that best from what it did say.
"""
