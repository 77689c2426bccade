"""The record of a run, simulated and on a GPU alike: the events, and what is made of them.

Read `plan.protocol` first: its tables are the one place where the barriers of a slot and the
moments of a step are listed, and addresses, names, reports, timelines and profiles follow from
them. Then ``events``, what a run leaves.

=============  =====================================================================================
file           concept
=============  =====================================================================================
``events``     an event, and the events of a run; ``trace``: `numpipe.Trace`, with all that it can
               show
``spans``      what a warpgroup did at every moment, and its tiles and regions
``rows``       what a timeline shows: bars of warpgroups and units, bands of tiles and regions
``text``       a timeline as text; ``drawing``: `numpipe.timeline`, also as SVG and PNG (matplotlib)
``summary``    where the time went
``legal``      whether a trace keeps the rules of the protocol, which it states a second time on
               purpose
``deadlocks``  the report of a run in which nobody can go on
``files``      traces saved, and read again; ``chrome``: the Trace Event Format
=============  =====================================================================================

All of it works on plain data. How events come about belongs to `sim` and `launch.profiles`, which
only fill a trace; what a report holds belongs to `diagnostics`.
"""
