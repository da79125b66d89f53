"""Published methods, one paper per file: an atom that composes and an alias that chains it."""
