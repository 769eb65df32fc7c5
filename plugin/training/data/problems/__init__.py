"""The demo's word problems: kinds, the draws that fill them, and the words they are told in."""
