"""Published claims and how they are checked."""
