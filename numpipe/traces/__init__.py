"""The record of a run, on the simulated SM or on a GPU: its events, and everything derived from
them.

Read `plan.protocol` first. Its tables are the only place that lists the barriers of a slot and the
events of a step; addresses, names, reports, timelines and profiles are derived from them. Then
read ``events``, which defines what a run records.

=====================  =============================================================================
file                   concept
=====================  =============================================================================
``events``             an event, and the events of a run; ``trace``: `numpipe.Trace`, with
                       everything that it can show
``spans``              what a warpgroup did at each moment, and its tiles and regions
``rows``               the contents of a timeline: bars of warpgroups and units, bands of tiles and
                       regions
``text``               a timeline as text; ``page``: as an HTML page that zooms and searches, drawn
                       by the script in timeline_page.html
``timeline_pictures``  `numpipe.timeline`: as text, a page, or SVG and PNG (matplotlib); ``looks``:
                       colors and hatches
``summary``            where the time went
``deadlocks``          the report of a run in which no warpgroup can proceed
``trace_files``        saving and reading traces; ``chrome``: the Trace Event Format
=====================  =============================================================================

This package works only on plain data. Events are created in `sim` and `launch.profiles`, which fill
a trace, and the contents of a report are defined in `diagnostics`.
"""
