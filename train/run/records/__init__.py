"""Records of a run, each checked in one place for all commands that read them."""
