"""The draft as it is trained: its configuration, model, blocks, losses and checkpoint folder."""
