"""Verification of kernels on the simulated SM: under many schedules, and against a reference.

Start with `verification`: `numpipe.verify` runs schedules and groups what they find. `exploring`
runs all schedules up to equivalence; `testing` (`numpipe.testing.check`) adds a reference and the
GPU; `mutation` leaves out synchronization; `argument_copies` copies a call's arguments for all of
them. Running one schedule and detecting races belong to `sim`, the names of hazards and the texts
of reports to `diagnostics`.
"""
