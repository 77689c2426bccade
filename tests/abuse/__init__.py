"""Tables of invalid files, environments and arguments, and one rule for valid answers (`rule`)."""
