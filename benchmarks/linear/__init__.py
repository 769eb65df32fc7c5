"""What projections of few tokens cost a decoder and a draft on this GPU."""
