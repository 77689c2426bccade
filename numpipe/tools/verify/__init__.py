"""A kernel on the simulated SM under many schedules, and beside a reference.

Read `verification` first: `numpipe.verify` runs schedules and groups what they find; `exploring`
runs all, up to equivalence; `testing` (`numpipe.testing.check`) adds a reference and the GPU;
`fresh` copies a call's arguments for both. How one schedule runs and what is a race belongs to
`sim`, the names of hazards and the text of reports to `diagnostics`.
"""
