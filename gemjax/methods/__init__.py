"""One paper a file: an atom that composes, and an alias that chains it into the published method."""
