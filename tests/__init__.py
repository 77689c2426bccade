"""The tests: a folder for each room of the package, `kernels` with shared helpers, and files that
test the source tree itself."""
