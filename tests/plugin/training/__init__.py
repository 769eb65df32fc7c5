"""Tests of `plugin.training`, on models small enough to run in milliseconds."""
