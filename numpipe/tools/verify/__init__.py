"""A kernel under many schedules of the simulated SM, and beside a reference: `verification` and `testing`."""
