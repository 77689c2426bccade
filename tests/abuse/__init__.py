"""Tables of what is wrong with files, environments and arguments, and one rule for how each is
answered (`rule`)."""
