"""The draft as the gateway sees it: what is loaded, and what it achieves."""
