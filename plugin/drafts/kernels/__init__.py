"""GPU programs of the drafts."""
