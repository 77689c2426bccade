"""The tests: folders as the rooms of the package, `kernels` with what they share, and files of
tests of the tree itself."""
