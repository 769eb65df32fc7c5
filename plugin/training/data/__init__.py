"""What a draft is trained on: from hub, file or mixture to conversations, pairs and token samples."""
