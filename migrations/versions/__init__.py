"""One module a revision, its id an ordered, zero-padded number."""
