"""Linear projections of few tokens: reading weights at the memory's speed."""
